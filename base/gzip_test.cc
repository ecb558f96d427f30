#include "base/gzip.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

constexpr size_t kNoLimit = size_t{1} << 30;

// As bgzip makes them. Where each takes as long as all before it, this takes a minute.
TEST(Gunzip, ManyMembersAreOneFile) {
  constexpr size_t kMembers = 20'000, kSize = 4096;
  std::vector<std::string> contents, members;
  for (char letter = 'a'; letter <= 'z'; ++letter) {
    members.push_back(Gzip(contents.emplace_back(kSize, letter)));
  }
  std::string packed;
  for (size_t i = 0; i < kMembers; ++i) packed += members[i % members.size()];
  const auto bytes = Gunzip(packed, "file", kNoLimit);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  ASSERT_EQ(bytes->size(), kMembers * kSize);
  for (size_t i = 0; i < kMembers; ++i) {
    ASSERT_TRUE(std::string_view(*bytes).substr(i * kSize, kSize) == contents[i % contents.size()]) << i;
  }
}

// Sizes around those of the room that is made for them.
TEST(Gunzip, AnEmptyMemberBehindALargeOneAddsNothing) {
  for (const size_t size : {size_t{0}, size_t{65'535}, size_t{65'536}, size_t{65'537}, size_t{1} << 20}) {
    const std::string content(size, 'x');
    EXPECT_TRUE(Gunzip(Gzip(content) + Gzip(""), "file", kNoLimit).value() == content) << size;
    EXPECT_TRUE(Gunzip(Gzip(content) + Gzip("") + Gzip("end"), "file", kNoLimit).value() == content + "end");
  }
}

TEST(Gunzip, TheLimitIsWhatMayBeUnpacked) {
  for (const size_t size : {size_t{0}, size_t{10}, size_t{65'536}, size_t{100'000}}) {
    const std::string content(size, 'x');
    for (const std::string& packed : {Gzip(content), Gzip(content) + Gzip("")}) {
      const auto bytes = Gunzip(packed, "file", size);
      ASSERT_TRUE(bytes.ok()) << bytes.status();
      EXPECT_TRUE(*bytes == content);
    }
    for (const std::string& packed :
         {Gzip(content + "y"), Gzip(content) + Gzip("y"), Gzip(content + content + content + "y")}) {
      EXPECT_EQ(Gunzip(packed, "file", size).status().message(),
                absl::StrFormat("file: unpacks to more than %d bytes", size));
    }
  }
}

}  // namespace
}  // namespace muster
