#include "agent/file_part.h"

#include <gtest/gtest.h>

#include <fstream>

namespace muster {
namespace {

class FilePart : public testing::Test {
 protected:
  void Write(const std::string& bytes) { std::ofstream(path_) << bytes; }

  // "OFFSET: BYTES"
  std::string Read(uint64_t offset, bool more_may_come, size_t max_bytes = 100) const {
    const auto piece = ReadFilePart(path_, offset, max_bytes, more_may_come);
    EXPECT_TRUE(piece.ok()) << piece.status();
    return piece.ok() ? absl::StrFormat("%d: %s", piece->offset, piece->bytes) : "";
  }

 private:
  const TemporaryDirectory directory_;
  const std::filesystem::path path_ = directory_.path() / "file";
};

TEST_F(FilePart, APartOfALineWaitsForItsEnd) {
  Write("one\ntw");
  EXPECT_EQ(Read(0, true), "0: one\n");
  EXPECT_EQ(Read(4, true), "4: ");
  EXPECT_EQ(Read(4, false), "4: tw");
  Write("one\ntwo and more\n");
  EXPECT_EQ(Read(4, true), "4: two and more\n");
}

TEST_F(FilePart, OfAFileThatWasCutItsLastLineIsTheNext) {
  Write("one\ntw");
  EXPECT_EQ(Read(100, false), "4: tw");
  EXPECT_EQ(Read(100, true), "4: ");
  Write("one\n");
  EXPECT_EQ(Read(100, true), "4: ");
  Write("half");
  EXPECT_EQ(Read(100, true), "0: ");
  Write("");
  EXPECT_EQ(Read(100, true), "0: ");
}

TEST_F(FilePart, ALineThatIsLongerThanAPartComesInSeveral) {
  Write("one\ntwo\nthree four\nfive");
  EXPECT_EQ(Read(0, true, 6), "0: one\n");
  EXPECT_EQ(Read(8, true, 6), "8: three ");
  EXPECT_EQ(Read(14, true, 6), "14: four\n");
  EXPECT_EQ(Read(100, false, 3), "20: ive");
}

}  // namespace
}  // namespace muster
