#include "launcher/contents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "base/archive.h"
#include "base/sha256.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

class ContentsTest : public testing::Test {
 protected:
  ContentsTest() { ::setenv("TMPDIR", place_.path().c_str(), 1); }
  ~ContentsTest() override { ::unsetenv("TMPDIR"); }

  void MakeFile(const std::string& name, uint64_t size) const {
    ASSERT_TRUE(WriteFileAtomically(folder_.path() / name, "beginning").ok());
    std::filesystem::resize_file(folder_.path() / name, size);
  }

  // What the kernel says of the memory at `address`.
  static std::string MappingOf(const char* address) {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      char* end = nullptr;
      const auto begin = std::strtoull(line.c_str(), &end, 16);
      const auto behind = std::strtoull(end + 1, nullptr, 16);
      const auto wanted = reinterpret_cast<uintptr_t>(address);
      if (begin <= wanted && wanted < behind) return line;
    }
    return "";
  }

  const TemporaryDirectory folder_, place_;
};

TEST_F(ContentsTest, ALargeArchiveIsInAFileThatNobodyElseSees) {
  MakeFile("large", kMostPackedInMemory);
  MakeFile("small", 100);
  const auto content = PackContent("data", folder_.path(), "mnist");
  ASSERT_TRUE(content.ok()) << content.status();
  const auto archive = PackDirectory(folder_.path(), {.into = "mnist"});
  ASSERT_TRUE(archive.ok()) << archive.status();
  EXPECT_TRUE(*content->bytes == *archive);
  EXPECT_EQ(content->sha256, Sha256Hex(*archive));
  EXPECT_THAT(MappingOf(content->bytes->data()), HasSubstr(place_.path().string()));
  EXPECT_TRUE(std::filesystem::is_empty(place_.path()));
}

TEST_F(ContentsTest, ASmallOneNeedsNoPlace) {
  MakeFile("small", 100);
  ::setenv("TMPDIR", "/nowhere", 1);
  const auto content = PackContent("data", folder_.path());
  ASSERT_TRUE(content.ok()) << content.status();
  const auto archive = PackDirectory(folder_.path());
  EXPECT_EQ(*content->bytes, *archive);
  EXPECT_EQ(content->sha256, Sha256Hex(*archive));
}

TEST_F(ContentsTest, WithoutAPlaceForALargeOneItIsNamed) {
  MakeFile("large", kMostPackedInMemory);
  ::setenv("TMPDIR", "/nowhere", 1);
  EXPECT_THAT(std::string(PackContent("data", folder_.path()).status().message()),
              HasSubstr("/nowhere (TMPDIR), where large data is packed: No such file or directory"));
}

}  // namespace
}  // namespace muster
