#include "agent/task_log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "agent/records.h"
#include "base/random.h"

namespace muster {
namespace {

class TaskLog : public testing::Test {
 protected:
  TaskLog() { std::filesystem::create_directories(AgentFolder(folder())); }

  std::filesystem::path folder() const { return directory_.path(); }

  // A byte says where in the stream it is.
  static std::string Stream(uint64_t begin, uint64_t size) {
    std::string bytes;
    for (uint64_t i = begin; i < begin + size; ++i)
      bytes += static_cast<char>(RandomStream(i / 8).Next() >> (i % 8));
    return bytes;
  }

  uint64_t BytesOnDisk() const {
    uint64_t bytes = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder())) {
      if (entry.is_regular_file()) bytes += entry.file_size();
    }
    return bytes;
  }

  // From `offset` to the end, as one answer.
  LogPiece Read(uint64_t offset) const {
    const auto piece = TaskLogReader(folder(), offset).Read(1 << 20);
    EXPECT_TRUE(piece.ok()) << piece.status();
    return piece.value_or(LogPiece{});
  }

 private:
  const TemporaryDirectory directory_;
};

TEST_F(TaskLog, IsNotThereBeforeTheFirstStart) {
  EXPECT_TRUE(absl::IsNotFound(FindLogExtent(folder()).status()));
  EXPECT_TRUE(absl::IsNotFound(TaskLogReader(folder(), 0).Read(10).status()));
  ASSERT_TRUE(TaskLogWriter::Open(folder(), 100).ok());
  const LogPiece piece = Read(0);
  EXPECT_EQ(piece.bytes, "");
  EXPECT_TRUE(piece.at_end);
}

TEST_F(TaskLog, IsOneFileUntilHalfOfItsBound) {
  auto writer = TaskLogWriter::Open(folder(), 100);
  for (int i = 0; i < 5; ++i) writer->Write("123456789\n");
  EXPECT_EQ(ReadFile(LogPath(folder()))->size(), 50u);
  writer->Write("next");
  EXPECT_EQ(*ReadFile(LogPath(folder())), "next");
  EXPECT_EQ(*ReadFile(AgentFolder(folder()) / "log.0"), Read(0).bytes.substr(0, 50));
  EXPECT_EQ(Read(0).bytes.size(), 54u);
}

// Whoever opens it anew, at any moment, finds its place again.
TEST_F(TaskLog, KeepsTheNewestAndTheirPlaces) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(seed);
    std::filesystem::remove_all(folder());
    std::filesystem::create_directories(AgentFolder(folder()));
    RandomStream random(seed);
    uint64_t written = 0;
    auto writer = TaskLogWriter::Open(folder(), 1000);
    for (int i = 0; i < 100; ++i) {
      const std::string bytes = Stream(written, 1 + random.Next() % 200);
      if (random.Next() % 4 == 0) writer = TaskLogWriter::Open(folder(), 1000);
      ASSERT_TRUE(writer.ok()) << writer.status();
      writer->Write(bytes);
      written += bytes.size();
      const auto extent = FindLogExtent(folder());
      ASSERT_TRUE(extent.ok()) << extent.status();
      ASSERT_EQ(extent->end, written);
      ASSERT_GE(extent->end - extent->begin, std::min<uint64_t>(written, 300));
      ASSERT_LE(BytesOnDisk(), 1000u);
      const uint64_t from = random.Next() % (written + 1);
      const LogPiece piece = Read(from);
      ASSERT_EQ(piece.offset, std::max(from, extent->begin));
      ASSERT_TRUE(piece.bytes == Stream(piece.offset, written - piece.offset));
      ASSERT_TRUE(piece.at_end);
    }
  }
}

TEST_F(TaskLog, WhoKeepsUpMissesNothing) {
  auto writer = TaskLogWriter::Open(folder(), 1000);
  TaskLogReader reader(folder(), 0);
  uint64_t written = 0, read = 0;
  RandomStream random(1);
  for (int i = 0; i < 1000; ++i) {
    const std::string bytes = Stream(written, random.Next() % 300);
    writer->Write(bytes);
    written += bytes.size();
    const auto piece = reader.Read(1 + random.Next() % 700);
    ASSERT_TRUE(piece.ok()) << piece.status();
    ASSERT_EQ(piece->offset, read);
    ASSERT_TRUE(piece->bytes == Stream(read, piece->bytes.size()));
    ASSERT_EQ(piece->at_end, read + piece->bytes.size() == written && piece->at_end);
    read += piece->bytes.size();
    if (i % 10 != 0) continue;
    while (read < written) {
      const auto rest = reader.Read(100);
      ASSERT_TRUE(rest.ok() && rest->offset == read) << i;
      read += rest->bytes.size();
    }
  }
}

TEST_F(TaskLog, IsReadWhileItIsWritten) {
  constexpr uint64_t kBytes = 2'000'000;
  std::atomic<bool> done = false;
  std::jthread writing([&] {
    auto writer = TaskLogWriter::Open(folder(), 20'000);
    RandomStream random(1);
    const std::string all = Stream(0, kBytes);
    for (uint64_t at = 0; at < kBytes;) {
      const uint64_t size = std::min(kBytes - at, 1 + random.Next() % 2000);
      writer->Write(std::string_view(all).substr(at, size));
      at += size;
    }
    EXPECT_EQ(writer->bytes_lost(), 0u);
    done = true;
  });
  const std::string all = Stream(0, kBytes);
  TaskLogReader reader(folder(), 0);
  uint64_t reached = 0;
  while (true) {
    const bool was_done = done;
    const auto piece = reader.Read(5000);
    if (absl::IsNotFound(piece.status())) continue;
    ASSERT_TRUE(piece.ok()) << piece.status();
    ASSERT_GE(piece->offset, reached);
    ASSERT_TRUE(piece->bytes == all.substr(piece->offset, piece->bytes.size())) << piece->offset;
    reached = piece->offset + piece->bytes.size();
    if (was_done && piece->at_end) break;
  }
  EXPECT_EQ(reached, kBytes);
}

TEST_F(TaskLog, AKilledWriterLeavesNoGap) {
  auto writer = TaskLogWriter::Open(folder(), 100);
  writer->Write(Stream(0, 40));
  writer->Write(Stream(40, 40));  // log.0, and `log` from 40 on
  // As if it had been killed between the new name of one and the removal of the other.
  std::filesystem::rename(LogPath(folder()), AgentFolder(folder()) / "log.40");
  EXPECT_EQ(FindLogExtent(folder())->end, 80u);
  EXPECT_TRUE(Read(0).bytes == Stream(0, 80));
  auto next = TaskLogWriter::Open(folder(), 100);
  next->Write(Stream(80, 30));
  EXPECT_TRUE(Read(0).bytes == Stream(0, 110));
  next->Write(Stream(110, 30));
  EXPECT_EQ(Read(0).offset, 80u);
  EXPECT_TRUE(Read(80).bytes == Stream(80, 60));
}

TEST_F(TaskLog, OneThatSomebodyRemovesGivesItsRoomBack) {
  auto writer = TaskLogWriter::Open(folder(), 100);
  writer->Write(Stream(0, 40));
  writer->Write(Stream(40, 20));
  std::filesystem::remove(LogPath(folder()));
  writer->Write(Stream(60, 20));
  EXPECT_EQ(FindLogExtent(folder())->end, 40u) << "that goes where the other did";
  writer->Write(Stream(40, 30));
  EXPECT_TRUE(Read(0).bytes == Stream(0, 70));
}

// Whose end went with the power.
TEST_F(TaskLog, WhoHasReadMoreThanThereIsGoesOnFromItsEnd) {
  auto writer = TaskLogWriter::Open(folder(), 100);
  writer->Write(Stream(0, 40));
  writer->Write(Stream(40, 20));  // log.0, and `log` from 40 on
  TaskLogReader reader(folder(), 5000);
  const auto at_end = reader.Read(100);
  ASSERT_TRUE(at_end.ok()) << at_end.status();
  EXPECT_EQ(at_end->offset, 60u);
  EXPECT_EQ(at_end->bytes, "");
  EXPECT_TRUE(at_end->at_end);
  writer->Write(Stream(60, 10));
  const auto more = reader.Read(100);
  ASSERT_TRUE(more.ok()) << more.status();
  EXPECT_EQ(more->offset, 60u);
  EXPECT_TRUE(more->bytes == Stream(60, 10));

  // While it is read.
  std::filesystem::resize_file(LogPath(folder()), 5);
  EXPECT_EQ(reader.Read(100)->offset, 45u);
  writer->Write("next");
  EXPECT_EQ(reader.Read(100)->bytes, "next");
}

// It knows of another one, on a host that was emptied since.
TEST_F(TaskLog, WhoCameBeforeItMissesNothing) {
  TaskLogReader reader(folder(), 5000);
  EXPECT_TRUE(absl::IsNotFound(reader.Read(100).status()));
  auto writer = TaskLogWriter::Open(folder(), 100);
  writer->Write(Stream(0, 8));
  const auto piece = reader.Read(100);
  ASSERT_TRUE(piece.ok()) << piece.status();
  EXPECT_EQ(piece->offset, 0u);
  EXPECT_TRUE(piece->bytes == Stream(0, 8));
}

TEST_F(TaskLog, WhatIsNoFileIsRefused) {
  ASSERT_EQ(::mkfifo(LogPath(folder()).c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(TaskLogReader(folder(), 0).Read(10).status()));
}

// The disk is a pipe: it takes as long as the test does to read. What is in the output at its end is the
// task's, what comes while that is written a stranger's.
TEST_F(TaskLog, WhatATaskPrintedLastIsWrittenHoweverSlowTheDiskIs) {
  constexpr size_t kPrinted = 200'000;
  ASSERT_EQ(::mkfifo(LogPath(folder()).c_str(), 0600), 0);
  const UniqueFd disk(::open(LogPath(folder()).c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  ASSERT_EQ(::fcntl(disk.get(), F_SETFL, 0), 0);
  int fds[2];
  ASSERT_EQ(::pipe2(fds, O_CLOEXEC | O_NONBLOCK), 0);
  const UniqueFd output(fds[0]), stranger(fds[1]);
  ASSERT_GT(::fcntl(stranger.get(), F_SETPIPE_SZ, 1 << 20), static_cast<int>(kPrinted));
  const std::string printed = Stream(0, kPrinted);
  ASSERT_TRUE(WriteAll(stranger.get(), printed).ok());
  auto writer = TaskLogWriter::Open(folder(), 1 << 30);
  ASSERT_TRUE(writer.ok()) << writer.status();
  uint64_t left = 0;
  std::jthread shim([&] {
    left = WriteRest(output.get(), *writer, Duration(0));
    { const TaskLogWriter ended = *std::move(writer); }
  });
  std::string log(1, '\0');
  EXPECT_EQ(::read(disk.get(), log.data(), 1), 1);
  EXPECT_TRUE(WriteAll(stranger.get(), "more").ok());
  char piece[65536];
  for (ssize_t n = 0; (n = ::read(disk.get(), piece, sizeof piece)) > 0;) log.append(piece, n);
  shim.join();
  EXPECT_TRUE(log == printed) << log.size();
  EXPECT_EQ(left, 4u);
}

}  // namespace
}  // namespace muster
