#include "inventory/host_selection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using ::testing::ElementsAre;

Inventory FiveHosts() {
  return *ParseInventory(
      "hosts: {ps-1: {labels: cpu}, gpu-01: {labels: [gpu, rack-1]}, gpu-02: {labels: gpu}, "
      "gpu-03: , gpu: }\n",
      "hosts.yaml", "/home/me");
}

std::vector<std::string> Selected(const std::vector<std::string>& words) {
  Inventory inventory = FiveHosts();
  const absl::Status status = SelectHosts(words, &inventory);
  if (!status.ok()) return {std::string(status.message())};
  std::vector<std::string> names;
  for (const Host& host : inventory.hosts) names.push_back(host.name);
  return names;
}

TEST(SelectHosts, ByNameRangeAndLabelOnceEachAsTheInventoryHasThem) {
  EXPECT_THAT(Selected({"gpu-03"}), ElementsAre("gpu-03"));
  EXPECT_THAT(Selected({"gpu-03", "ps-1", "gpu-03"}), ElementsAre("ps-1", "gpu-03"));
  EXPECT_THAT(Selected({"gpu-[01:03]"}), ElementsAre("gpu-01", "gpu-02", "gpu-03"));
  EXPECT_THAT(Selected({"gpu-[01:03:2]", "cpu"}), ElementsAre("ps-1", "gpu-01", "gpu-03"));
  EXPECT_THAT(Selected({"gpu"}), ElementsAre("gpu-01", "gpu-02", "gpu")) << "a host has that name, too";
  EXPECT_THAT(Selected({"rack-[1:1]", "gpu-01"}), ElementsAre("gpu-01"));
}

TEST(SelectHosts, RefusesAWordThatNamesNone) {
  EXPECT_THAT(Selected({"ps-1", "gpus"}),
              ElementsAre("\"gpus\" is neither a host nor a label in hosts.yaml; did you mean \"gpu\"?"));
  EXPECT_THAT(
      Selected({"gpu-[02:04]"}),
      ElementsAre("\"gpu-04\" is neither a host nor a label in hosts.yaml; did you mean \"gpu-01\"?"));
  EXPECT_THAT(Selected({""}),
              ElementsAre("\"\" is neither a host nor a label in hosts.yaml; those there are: "
                          "cpu, gpu, gpu-01, gpu-02, gpu-03, ps-1, rack-1"));
  EXPECT_THAT(Selected({"gpu-[02:01]"}), ElementsAre(testing::HasSubstr("[02:01]")));
  EXPECT_THAT(Selected({"gpu-[01"}), ElementsAre("'[' without ']' in \"gpu-[01\""));
}

}  // namespace
}  // namespace muster
