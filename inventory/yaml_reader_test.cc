#include "inventory/yaml_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using ::testing::HasSubstr;

TEST(YamlReader, ReadsNumbersStrictly) {
  const auto document = ParseYaml(
      "[7, -3, 08, 0x10, 1e3, 1_000, \"7\", 9223372036854775807, 9223372036854775808, 7.0, ~]", "f");
  ASSERT_TRUE(document.ok()) << document.status();
  const auto read = [&](size_t i) { return YamlInteger<int64_t>(-5, INT64_MAX)(document->root.children[i]); };
  EXPECT_EQ(*read(0), 7);
  EXPECT_EQ(*read(1), -3);
  EXPECT_EQ(*read(7), INT64_MAX);
  for (const size_t i : {2, 3, 4, 5, 6, 8, 9, 10}) EXPECT_FALSE(read(i).ok()) << i;
  EXPECT_EQ(read(6).status().message(),
            "f:1:31: expected a whole number from -5 to 9223372036854775807, found the text \"7\"");
  const auto numbers = ParseYaml("[0.5, 1e-3, 2, 0, -1, inf, nan, 0.5x, .5, 1e999]", "f");
  for (const size_t i : {0, 1, 2, 3, 8}) EXPECT_TRUE(YamlNumber(0, 2)(numbers->root.children[i]).ok()) << i;
  for (const size_t i : {4, 5, 6, 7, 9}) EXPECT_FALSE(YamlNumber(0, 2)(numbers->root.children[i]).ok()) << i;
  EXPECT_EQ(YamlNumber(0, 2)(numbers->root.children[4]).status().message(),
            "f:1:19: expected a number from 0 to 2, found \"-1\"");
}

TEST(YamlReader, ReadsDurations) {
  const auto document = ParseYaml("[500ms, 10s, 5m, 24h, 25h, 0s, 10, -1s, 1.5s, s]", "f");
  const auto& items = document->root.children;
  EXPECT_EQ(*YamlDurationMs(items[0]), 500);
  EXPECT_EQ(*YamlDurationMs(items[1]), 10'000);
  EXPECT_EQ(*YamlDurationMs(items[2]), 300'000);
  EXPECT_EQ(*YamlDurationMs(items[3]), 86'400'000);
  for (size_t i = 4; i < items.size(); ++i) EXPECT_FALSE(YamlDurationMs(items[i]).ok()) << i;
}

TEST(YamlReader, ResolvesLocalPathsAgainstHomeAndTheFilesFolder) {
  const auto document = ParseYaml("[~/key, key, /etc/key, ../key, ~other/key]", "jobs/f.yaml");
  const auto resolve = [&](size_t i, const char* home = "/home/me") {
    return ResolveLocalPath(document->root.children[i], home);
  };
  EXPECT_EQ(*resolve(0), "/home/me/key");
  EXPECT_EQ(*resolve(1), "jobs/key");
  EXPECT_EQ(*resolve(2), "/etc/key");
  EXPECT_EQ(*resolve(3), "key");
  EXPECT_THAT(std::string(resolve(4).status().message()), HasSubstr("the home of another user"));
  EXPECT_EQ(resolve(0, "").status().message(), "jobs/f.yaml:1:2: ~ cannot be resolved: HOME is not set");
}

TEST(YamlReader, ReadsFoldersOfHostsThatAShellCanBeGiven) {
  const auto document =
      ParseYaml("[/a b, ~/x, \"~\", x, \"/a\\nb\", \"~/\\t\", \"/\\x7f\", \"/\u00fc\"]", "f");
  ASSERT_TRUE(document.ok()) << document.status();
  const auto& items = document->root.children;
  EXPECT_EQ(*YamlRemoteFolder(items[0]), "/a b");
  for (const size_t i : {1, 2, 7}) EXPECT_TRUE(YamlRemoteFolder(items[i]).ok()) << i;
  for (const size_t i : {3, 4, 5, 6}) EXPECT_FALSE(YamlRemoteFolder(items[i]).ok()) << i;
  EXPECT_EQ(YamlRemoteFolder(items[4]).status().message(),
            "f:1:21: \"/a\\nb\" holds a control character; give the host a folder without one");
}

TEST(YamlFields, ReportsTheFirstErrorOfTheFileAndMissingKeysLast) {
  const auto finish = [](std::string_view text) {
    const auto document = ParseYaml(text, "f");
    int count = 0;
    std::string name;
    YamlFields fields(document->root, "the thing");
    fields.Require("name", &name, YamlText);
    fields.Read("count", &count, YamlInteger<int>(0, 9));
    return std::string(fields.Finish().message());
  };
  EXPECT_EQ(finish("name: a\ncount: 3\n"), "");
  EXPECT_EQ(finish("count: 10\nname: []\n"), "f:1:8: expected a whole number from 0 to 9, found \"10\"");
  EXPECT_EQ(finish("name: []\ncount: 10\n"), "f:1:7: expected text, found a list");
  EXPECT_EQ(finish("nmae: a\ncount: 1\n"),
            "f:1:1: unknown key \"nmae\" in the thing; did you mean \"name\"?");
  EXPECT_EQ(finish("volume: 1\nname: a\n"),
            "f:1:1: unknown key \"volume\" in the thing; keys there are: name, count");
  EXPECT_EQ(finish("count: 1\n"), "f:1:1: \"name\" is missing in the thing");
  EXPECT_EQ(finish("name:\ncount: 1\n"), "f:1:1: expected text, found nothing");
  EXPECT_EQ(finish("just words\n"),
            "f:1:1: expected a mapping (`key: value`) in the thing, found \"just words\"");
}

}  // namespace
}  // namespace muster
