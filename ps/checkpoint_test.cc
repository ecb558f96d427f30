// Files of checkpoints: what is damaged, missing or not finished is noticed, and never read as something
// else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/crc32c.h"
#include "base/file.h"
#include "base/random.h"
#include "ps/checkpoint_file.h"
#include "ps/checkpoint_store.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<char> Bytes(size_t size, uint64_t seed) {
  RandomStream random(seed);
  std::vector<char> bytes(size);
  for (char& byte : bytes) byte = static_cast<char>(random.NextBelow(256));
  return bytes;
}

checkpoint::ShardHeader Header(uint64_t step, int index = 0, int count = 1) {
  checkpoint::ShardHeader header;
  header.set_step(step);
  header.set_shard_index(static_cast<uint32_t>(index));
  header.set_shard_count(static_cast<uint32_t>(count));
  return header;
}

class CheckpointTest : public testing::Test {
 protected:
  // A whole checkpoint of `shards` files with `bytes` each, which are a function of (step, shard).
  static absl::Status Write(const CheckpointStore& store, uint64_t step, int shards = 2, size_t bytes = 40) {
    checkpoint::Manifest manifest;
    manifest.set_step(step);
    for (int i = 0; i < shards; ++i) {
      const std::vector<char> section = Bytes(bytes, step * 10 + static_cast<uint64_t>(i));
      const CheckpointSection sections[] = {{.bytes = section}};
      MUSTER_ASSIGN_OR_RETURN(*manifest.add_files(),
                              store.WriteShard(step, Header(step, i, shards), sections));
    }
    return store.Commit(manifest);
  }

  // All of a checkpoint can be read, and is what was written.
  static absl::Status Verify(const CheckpointStore& store, uint64_t step, size_t bytes = 40) {
    MUSTER_ASSIGN_OR_RETURN(const checkpoint::Manifest manifest, store.ReadManifest(step));
    for (int i = 0; i < manifest.files_size(); ++i) {
      MUSTER_ASSIGN_OR_RETURN(ShardFileReader reader, store.OpenShard(manifest, i));
      std::vector<char> section(reader.header().sections_size() == 1 ? reader.header().sections(0).bytes()
                                                                     : 0);
      if (reader.header().sections_size() == 1) MUSTER_RETURN_IF_ERROR(reader.Read(section));
      MUSTER_RETURN_IF_ERROR(store.CheckDigest(manifest, i, reader));
      EXPECT_EQ(section, Bytes(bytes, step * 10 + static_cast<uint64_t>(i))) << "a wrong load";
    }
    return absl::OkStatus();
  }

  TemporaryDirectory folder_;
  const CheckpointStore store_{folder_.path() / "checkpoints"};
};

TEST_F(CheckpointTest, SectionsOfAnySizeComeBack) {
  const size_t sizes[] = {0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20};
  std::vector<std::vector<char>> data;
  std::vector<CheckpointSection> sections;
  for (const size_t size : sizes) data.push_back(Bytes(size, size));
  for (size_t i = 0; i < data.size(); ++i) {
    CheckpointSection& section = sections.emplace_back();
    section.section.set_slot(static_cast<uint32_t>(i));
    section.bytes = data[i];
  }
  const std::filesystem::path path = folder_.path() / "file";
  const auto written = WriteShardFile(path, Header(7), sections);
  ASSERT_TRUE(written.ok()) << written.status();
  EXPECT_EQ(written->bytes, std::filesystem::file_size(path));
  auto reader = ShardFileReader::Open(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->header().step(), 7u);
  ASSERT_EQ(reader->header().sections_size(), 6);
  for (size_t i = 0; i < data.size(); ++i) {
    EXPECT_EQ(reader->header().sections(static_cast<int>(i)).slot(), i);
    std::vector<char> bytes(data[i].size());
    ASSERT_TRUE(reader->Read(bytes).ok());
    EXPECT_EQ(bytes, data[i]);
  }
  EXPECT_EQ(*reader->Finish(), *written);
}

TEST_F(CheckpointTest, EveryFlippedBitAndEveryTruncationIsNoticed) {
  ASSERT_TRUE(Write(store_, 5, 1).ok());
  ASSERT_TRUE(Verify(store_, 5).ok());
  for (const std::string& name : {CheckpointStore::ShardFileName(0, 1), std::string("manifest")}) {
    const std::filesystem::path path = store_.PathOf(5, name);
    const std::string good = *ReadFile(path);
    for (size_t i = 0; i < good.size() * 8; ++i) {
      std::string bad = good;
      bad[i / 8] = static_cast<char>(bad[i / 8] ^ (1 << i % 8));
      ASSERT_TRUE(WriteFileAtomically(path, bad).ok());
      const absl::Status status = Verify(store_, 5);
      ASSERT_FALSE(status.ok()) << name << ", bit " << i;
      ASSERT_THAT(std::string(status.message()), HasSubstr(path.string()));
    }
    for (size_t size = 0; size < good.size(); ++size) {
      ASSERT_TRUE(WriteFileAtomically(path, good.substr(0, size)).ok());
      ASSERT_FALSE(Verify(store_, 5).ok()) << name << " cut to " << size;
    }
    ASSERT_TRUE(WriteFileAtomically(path, good + "x").ok());
    EXPECT_FALSE(Verify(store_, 5).ok()) << name;
    ASSERT_TRUE(WriteFileAtomically(path, good).ok());
    ASSERT_TRUE(Verify(store_, 5).ok());
  }
}

TEST_F(CheckpointTest, AMissingFileAndOneOfAnotherCheckpointAreNoticed) {
  ASSERT_TRUE(Write(store_, 5).ok());
  const std::filesystem::path path = store_.PathOf(5, CheckpointStore::ShardFileName(1, 2));
  const std::string good = *ReadFile(path);
  // The same shard at the same step, of a training that went another way.
  const std::vector<char> section = Bytes(40, 99);
  const CheckpointSection sections[] = {{.bytes = section}};
  const CheckpointStore other(folder_.path() / "other");
  ASSERT_TRUE(other.WriteShard(5, Header(5, 1, 2), sections).ok());
  ASSERT_TRUE(
      WriteFileAtomically(path, *ReadFile(other.PathOf(5, CheckpointStore::ShardFileName(1, 2)))).ok());
  absl::Status status = Verify(store_, 5);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("is not the file that its checkpoint was made with"));
  // The other shard's.
  ASSERT_TRUE(
      WriteFileAtomically(path, *ReadFile(store_.PathOf(5, CheckpointStore::ShardFileName(0, 2)))).ok());
  EXPECT_EQ(Verify(store_, 5).code(), absl::StatusCode::kDataLoss);
  std::filesystem::remove(path);
  status = Verify(store_, 5);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("must hold the files of all of them"));
  ASSERT_TRUE(WriteFileAtomically(path, good).ok());
  EXPECT_TRUE(Verify(store_, 5).ok());
}

TEST_F(CheckpointTest, OneThatIsMadeAgainIsNoneUntilItIsWhole) {
  ASSERT_TRUE(Write(store_, 5).ok());
  ASSERT_TRUE(store_.WriteShard(5, Header(5, 1, 2), {}).ok());
  EXPECT_THAT(*store_.List(), IsEmpty());
  ASSERT_TRUE(Write(store_, 5).ok());
  EXPECT_TRUE(Verify(store_, 5).ok());
}

TEST_F(CheckpointTest, AnotherVersionIsRefusedWithBothNumbers) {
  // A newer program's header; its checksum is right.
  checkpoint::ShardHeader header = Header(5);
  ASSERT_TRUE(WriteShardFile(folder_.path() / "file", header, {}).ok());
  std::string bytes = *ReadFile(folder_.path() / "file");
  header.set_version(2);
  const std::string newer = header.SerializeAsString();
  ASSERT_EQ(bytes.size(), 16 + newer.size());
  const uint32_t crc32c = Crc32c(newer.data(), newer.size());
  bytes = bytes.substr(0, 12) + std::string(reinterpret_cast<const char*>(&crc32c), 4) + newer;
  ASSERT_TRUE(WriteFileAtomically(folder_.path() / "file", bytes).ok());
  const absl::Status status = ShardFileReader::Open(folder_.path() / "file").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("version 2 of the checkpoint format, this program reads version 1"));
}

// A process that writes step 200 beside step 100 is killed before each of its operations on the file system,
// one after the other. What is there then is step 100, or both.
TEST_F(CheckpointTest, KilledAnywhereItLeavesWholeCheckpoints) {
  ASSERT_TRUE(Write(store_, 100).ok());
  int kills = 0;
  bool committed_before_a_kill = false;
  for (int at = 1;; ++at) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      int operation = 0;
      const CheckpointStore store(store_.folder(), [&](const char*) {
        if (++operation == at) ::raise(SIGKILL);
      });
      ::_exit(Write(store, 200).ok() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    const std::vector<uint64_t> steps = *store_.List();
    for (const uint64_t step : steps)
      ASSERT_TRUE(Verify(store_, step).ok()) << "killed before operation " << at;
    ASSERT_EQ(steps.back(), 100u);
    if (WIFEXITED(status)) {
      ASSERT_EQ(WEXITSTATUS(status), 0);
      ASSERT_THAT(steps, ElementsAre(200, 100));
      break;
    }
    ++kills;
    if (steps.size() == 2) committed_before_a_kill = true;
    // The next attempt begins where this one left the folder, but without its commit.
    std::filesystem::remove(store_.PathOf(200, "manifest"));
  }
  EXPECT_GE(kills, 15);
  EXPECT_TRUE(committed_before_a_kill);
}

// The kernel ends a process in the middle of a write once a file reaches its limit.
TEST_F(CheckpointTest, KilledInTheMiddleOfAWriteItLeavesWholeCheckpoints) {
  constexpr size_t kBytes = 3'000'000;
  ASSERT_TRUE(Write(store_, 100, 1, kBytes).ok());
  for (const rlim_t limit : {1, 100, 1'000'000, 1'048'700, 2'999'999, 3'000'010}) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      const rlimit core{0, 0}, size{limit, limit};
      ::setrlimit(RLIMIT_CORE, &core);
      ::setrlimit(RLIMIT_FSIZE, &size);
      ::signal(SIGXFSZ, SIG_DFL);
      ::_exit(Write(store_, 200, 1, kBytes).ok() ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << limit;
    ASSERT_THAT(*store_.List(), ElementsAre(100));
    ASSERT_TRUE(Verify(store_, 100, kBytes).ok());
  }
}

TEST_F(CheckpointTest, AFullDiskLeavesNothing) {
  const rlimit small{100, RLIM_INFINITY};
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = Write(store_, 5, 1, 1000);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, SIG_DFL);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(*ListDirectory(store_.PathOf(5, "")), IsEmpty());
}

// A process that is stopped while it writes, and goes on when another one has made the checkpoint.
TEST_F(CheckpointTest, WhoseFolderItIsNoMoreReplacesNothing) {
  bool is_own = true;
  const CheckpointStore old(
      store_.folder(),
      [&](const std::string& operation) {
        if (operation != "sync") return;
        is_own = false;
        EXPECT_TRUE(Write(store_, 5, 1).ok());
      },
      [&] { return is_own ? absl::OkStatus() : FailedPrecondition("another one's"); });
  EXPECT_THAT(std::string(old.WriteShard(5, Header(5), {}).status().message()), HasSubstr("another one's"));
  checkpoint::Manifest manifest = *store_.ReadManifest(5);
  EXPECT_FALSE(old.Commit(manifest).ok());
  EXPECT_FALSE(old.RemoveAfter(0, CheckpointStore::ShardFileName(0, 1)).ok());
  const absl::Status verified = Verify(store_, 5);
  EXPECT_TRUE(verified.ok()) << verified;
  EXPECT_THAT(*ListDirectory(store_.PathOf(5, "")), testing::SizeIs(2)) << "the file and the manifest";
}

TEST_F(CheckpointTest, WhatAKilledProcessHadBegunIsRemovedByWhoeverGoesBack) {
  const std::string name = CheckpointStore::ShardFileName(0, 2);
  ASSERT_TRUE(Write(store_, 5).ok());
  ASSERT_TRUE(MakeDirectories(store_.PathOf(10, "")).ok());
  ASSERT_TRUE(WriteFileAtomically(store_.PathOf(10, name + kUnfinishedShardFile + "abc"), "half").ok());
  ASSERT_TRUE(store_.RemoveAfter(5, name).ok());
  EXPECT_THAT(*ListDirectory(store_.folder()), testing::SizeIs(1));
  EXPECT_TRUE(Verify(store_, 5).ok());
}

TEST_F(CheckpointTest, OfWhatIsAbandonedTheNewestFilesAreKept) {
  const std::string own = CheckpointStore::ShardFileName(0, 2), copy = CheckpointStore::ShardFileName(1, 2);
  EXPECT_TRUE(store_.RemoveAbandoned(100, {own}).ok()) << "no folder yet";
  ASSERT_TRUE(Write(store_, 10).ok());
  for (const uint64_t step : {20, 30, 40, 60}) {
    ASSERT_TRUE(store_.WriteShard(step, Header(step, 0, 2), {}).ok());
  }
  for (const uint64_t step : {20, 30}) {
    ASSERT_TRUE(store_.WriteShard(step, Header(step, 1, 2), {}).ok());
  }
  ASSERT_TRUE(MakeDirectories(store_.PathOf(50, "")).ok());
  ASSERT_TRUE(store_.RemoveAbandoned(50, {copy, own}).ok());
  EXPECT_TRUE(Verify(store_, 10).ok()) << "is one";
  EXPECT_THAT(*ListDirectory(store_.folder()), ElementsAre("step-000000000010", "step-000000000030",
                                                           "step-000000000040", "step-000000000060"));
  EXPECT_THAT(*ListDirectory(store_.PathOf(30, "")), ElementsAre(copy));
}

TEST_F(CheckpointTest, TheNewestAreKept) {
  EXPECT_THAT(*store_.List(), IsEmpty()) << "no folder yet";
  for (const uint64_t step : {30, 10, 20, 40}) ASSERT_TRUE(Write(store_, step).ok());
  ASSERT_TRUE(store_.WriteShard(15, Header(15), {}).ok());  // never finished
  ASSERT_TRUE(store_.WriteShard(50, Header(50), {}).ok());  // under way
  ASSERT_TRUE(MakeDirectories(store_.folder() / "notes").ok());
  EXPECT_THAT(*store_.List(), ElementsAre(40, 30, 20, 10));
  ASSERT_TRUE(store_.Prune(5, UINT64_MAX).ok());
  EXPECT_THAT(*store_.List(), ElementsAre(40, 30, 20, 10));
  ASSERT_TRUE(store_.Prune(2, UINT64_MAX).ok());
  EXPECT_THAT(*store_.List(), ElementsAre(40, 30));
  EXPECT_THAT(*ListDirectory(store_.folder()),
              ElementsAre("notes", "step-000000000030", "step-000000000040", "step-000000000050"));
  EXPECT_TRUE(Verify(store_, 30).ok());
  ASSERT_TRUE(store_.Prune(1, /*needed=*/30).ok());
  EXPECT_THAT(*store_.List(), ElementsAre(40, 30));
}

}  // namespace
}  // namespace muster
