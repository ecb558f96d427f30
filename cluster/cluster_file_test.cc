#include "cluster/cluster_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using ::testing::HasSubstr;

TEST(ClusterFile, ComesBackAsItWasWritten) {
  const ClusterFile file{
      .generation = 7,
      .cluster = {
          .ps = {"10.0.0.1:20001", "[fe80::1]:20002"}, .workers = {"10.0.0.2:20002"}, .chief = {"h:1"}}};
  const auto read = ParseClusterFile(FormatClusterFile(file));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->generation, 7);
  EXPECT_EQ(read->cluster, file.cluster);
}

TEST(ClusterFile, LeavesOutRolesWithoutTasks) {
  EXPECT_EQ(FormatClusterFile({.generation = 1, .cluster = {.workers = {"a:1"}}}),
            "{\"version\":1,\"generation\":1,\"cluster\":{\"worker\":[\"a:1\"]}}\n");
}

TEST(ClusterFile, IgnoresOtherKeysAndSpaces) {
  const auto read = ParseClusterFile(
      R"( {"version": 1, "generation": 18446744073709551615, "job": "mnist", "cluster": {"worker": ["a:1"]}} )");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->generation, 18446744073709551615u);
  EXPECT_EQ(read->cluster, ClusterSpec{.workers = {"a:1"}});
}

TEST(ClusterFile, SaysWhyItIsRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "not a JSON object"},
      {"[]", "not a JSON object"},
      {R"({"version": 1, "generation": 7, "clus)", "not a JSON object"},
      {R"({"generation": 7, "cluster": {}})", "no whole number \"version\""},
      {R"({"version": "1", "generation": 7, "cluster": {}})", "no whole number \"version\""},
      {R"({"version": 2})", "it has version 2, this program reads version 1"},
      {R"({"version": 1, "cluster": {}})", "no whole number \"generation\""},
      {R"({"version": 1, "generation": -7, "cluster": {}})", "no whole number \"generation\""},
      {R"({"version": 1, "generation": 7.5, "cluster": {}})", "no whole number \"generation\""},
      {R"({"version": 1, "generation": 7})", "no object \"cluster\""},
      {R"({"version": 1, "generation": 7, "cluster": ["a:1"]})", "no object \"cluster\""},
      {R"({"version": 1, "generation": 7, "cluster": {"master": ["a:1"]}})", "'master' is not ps, worker"},
      {R"({"version": 1, "generation": 7, "cluster": {"ps": "a:1"}})", "cluster.ps is not a list"},
      {R"({"version": 1, "generation": 7, "cluster": {"ps": [1]}})", "cluster.ps holds something"},
      {R"({"version": 1, "generation": 7, "cluster": {"ps": ["a"]}})", "cluster.ps: 'a' is not host:port"},
      {R"({"version": 1, "generation": 7, "cluster": {"ps": ["a:0"]}})", "has no port"},
      {R"({"version": 1, "generation": 7, "cluster": {"ps": ["a:1"], "worker": ["b:1", "a:1"]}})",
       "ps:0 and worker:1 have the same address a:1"},
  };
  for (const auto& [text, why] : cases) {
    const auto read = ParseClusterFile(text);
    ASSERT_FALSE(read.ok()) << text;
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(why)) << text;
  }
}

}  // namespace
}  // namespace muster
