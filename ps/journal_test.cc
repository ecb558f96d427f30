// What a journal gives back after every way of ending.
#include "ps/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <vector>

#include "base/random.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

class JournalTest : public testing::Test {
 protected:
  static journal::SegmentHeader Header() {
    journal::SegmentHeader header;
    header.set_shard_index(1);
    header.set_shard_count(2);
    header.set_epoch(7);
    header.set_checkpoint(40);
    return header;
  }

  // The n-th of a sequence.
  static journal::Record RecordOf(uint64_t n) {
    journal::Record record;
    if (n % 5 == 4) {
      record.mutable_decision()->set_step(n);
      record.mutable_decision()->add_ranks(0);
      return record;
    }
    record.mutable_push()->set_rank(static_cast<uint32_t>(n % 3));
    record.mutable_push()->set_worker_uuid("uuid");
    record.mutable_push()->mutable_push()->set_sequence(n);
    return record;
  }
  static std::string PayloadOf(uint64_t n) {
    if (n % 5 == 4) return "";
    RandomStream random(n, 1);
    std::string payload(random.NextBelow(200), '\0');
    for (char& c : payload) c = static_cast<char>(random.NextBelow(256));
    return payload;
  }

  // In two parts.
  static absl::Status Append(JournalWriter& writer, uint64_t n) {
    const std::string payload = PayloadOf(n);
    const std::span<const char> all(payload);
    const std::span<const char> parts[] = {all.first(all.size() / 3), all.subspan(all.size() / 3)};
    return writer.Append(RecordOf(n), parts);
  }

  std::filesystem::path Write(uint64_t count) {
    const std::filesystem::path path = folder_.path() / "journal";
    auto writer = JournalWriter::Create(path, Header());
    EXPECT_TRUE(writer.ok()) << writer.status();
    for (uint64_t n = 0; n < count; ++n) EXPECT_TRUE(Append(*writer, n).ok());
    EXPECT_EQ(writer->records(), count);
    EXPECT_EQ(writer->bytes(), std::filesystem::file_size(path));
    return path;
  }

  // How many of the sequence there are, from the first one on; whatever else there is is a failure.
  static absl::StatusOr<uint64_t> Count(const std::filesystem::path& path, bool* torn) {
    MUSTER_ASSIGN_OR_RETURN(JournalReader reader, JournalReader::Open(path));
    while (true) {
      MUSTER_ASSIGN_OR_RETURN(const auto entry, reader.Next());
      if (!entry) break;
      EXPECT_EQ(entry->record.SerializeAsString(), RecordOf(reader.records() - 1).SerializeAsString());
      EXPECT_EQ(entry->payload, PayloadOf(reader.records() - 1));
    }
    *torn = reader.is_torn();
    return reader.records();
  }

  // Without a sync, of which there would be thousands.
  static void Overwrite(const std::filesystem::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  }

  TemporaryDirectory folder_;
};

TEST_F(JournalTest, GivesBackWhatWasAppended) {
  const std::filesystem::path path = Write(40);
  const auto reader = JournalReader::Open(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->header().epoch(), 7u);
  EXPECT_EQ(reader->header().checkpoint(), 40u);
  bool torn = true;
  EXPECT_EQ(*Count(path, &torn), 40u);
  EXPECT_FALSE(torn);
  EXPECT_EQ(JournalWriter::Create(path, Header()).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(JournalReader::Open(folder_.path() / "none").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(JournalTest, CutOffAnywhereItHasAllWholeRecordsAndSaysSo) {
  const std::filesystem::path path = Write(12);
  const std::string whole = *ReadFile(path);
  uint64_t last = 0;
  for (size_t size = 0; size < whole.size(); ++size) {
    Overwrite(path, whole.substr(0, size));
    bool torn = false;
    const auto count = Count(path, &torn);
    ASSERT_TRUE(count.ok()) << size << ": " << count.status();
    ASSERT_TRUE(*count == last || (*count == last + 1 && !torn)) << size;
    last = *count;
  }
  EXPECT_EQ(last, 11u);
}

TEST_F(JournalTest, AFlippedBitInAnyByteIsNoticed) {
  const std::filesystem::path path = Write(12);
  const std::string whole = *ReadFile(path);
  for (size_t bit = 0; bit < 8 * whole.size(); bit += 7) {
    std::string bad = whole;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    Overwrite(path, bad);
    bool torn = false;
    const auto count = Count(path, &torn);
    ASSERT_EQ(count.status().code(), absl::StatusCode::kDataLoss) << "bit " << bit << ": " << count.status();
  }
}

TEST_F(JournalTest, ARecordElsewhereIsNoticed) {
  const std::filesystem::path path = Write(1);
  const std::string one = *ReadFile(path);
  std::filesystem::remove(path);
  const std::string two = *ReadFile(Write(2));
  ASSERT_TRUE(WriteFileAtomically(path, one + two.substr(one.size()) + two.substr(one.size())).ok());
  bool torn = false;
  EXPECT_EQ(Count(path, &torn).status().code(), absl::StatusCode::kDataLoss);
}

TEST_F(JournalTest, KillLosesNothingThatWasAppended) {
  for (int round = 0; round < 20; ++round) {
    const std::filesystem::path path = folder_.path() / std::to_string(round);
    int told[2];
    ASSERT_EQ(::pipe(told), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      auto writer = JournalWriter::Create(path, Header());
      for (uint64_t n = 0; writer.ok() && Append(*writer, n).ok(); ++n) {
        if (::write(told[1], &n, sizeof n) != sizeof n) break;
      }
      ::_exit(1);
    }
    ::close(told[1]);
    uint64_t acknowledged = 0, count = 0;
    const uint64_t enough = 1 + 37 * static_cast<uint64_t>(round);
    for (uint64_t n; ::read(told[0], &n, sizeof n) == sizeof n; acknowledged = n + 1) {
      if (++count == enough) ::kill(child, SIGKILL);
    }
    ::close(told[0]);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    bool torn = false;
    const auto found = Count(path, &torn);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_GE(*found, acknowledged);
    EXPECT_LE(*found, acknowledged + 1) << "what was appended, but not said yet";
  }
}

TEST_F(JournalTest, AFullDiskIsAnError) {
  auto writer = JournalWriter::Create("/dev/full", Header());
  EXPECT_FALSE(writer.ok());
}

TEST_F(JournalTest, AnotherKindOfFileIsRefused) {
  const std::filesystem::path path = folder_.path() / "other";
  Overwrite(path, "MUSTERC1 and so on");
  EXPECT_THAT(std::string(JournalReader::Open(path).status().message()),
              HasSubstr("does not begin as a journal"));
}

}  // namespace
}  // namespace muster
