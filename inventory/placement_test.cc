#include "inventory/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace muster {
namespace {

Inventory HostsOf(std::string_view text) {
  const auto inventory = ParseInventory(text, "inv.yaml", "/home/me");
  EXPECT_TRUE(inventory.ok()) << inventory.status();
  return inventory.ok() ? *inventory : Inventory{};
}

Job JobWith(const std::string& replicas) {
  const auto job =
      ParseJob("name: j\nmodel: mnist_softmax\nreplicas: " + replicas + "\n", "job.yaml", "/home/me");
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? *job : Job{};
}

// "ps:0@a ps:1@b worker:0@c"
std::string TextOf(const std::vector<PlacedTask>& placed, const Inventory& inventory) {
  std::string text;
  for (const PlacedTask& task : placed) {
    text += (text.empty() ? "" : " ") + task.Name() + "@" + inventory.hosts[task.host_index].name;
  }
  return text;
}

// That, or the error.
std::string Place(const std::string& replicas, std::string_view hosts) {
  const Inventory inventory = HostsOf(hosts);
  const auto placed = PlaceTasks(JobWith(replicas), inventory);
  if (!placed.ok()) {
    EXPECT_EQ(ExitCodeFor(placed.status()), 2);
    return std::string(placed.status().message());
  }
  return TextOf(*placed, inventory);
}

TEST(Placement, SpreadsTasksOverHostsInTheOrderOfTheInventory) {
  const char* four = "hosts: {\"h[1:4]\": }";
  EXPECT_EQ(Place("{ps: {count: 2}, worker: {count: 3}}", four),
            "ps:0@h1 ps:1@h2 worker:0@h3 worker:1@h4 worker:2@h1");
  EXPECT_EQ(Place("{ps: {count: 1}, chief: {count: 1}, worker: {count: 2}}", four),
            "ps:0@h1 chief:0@h2 worker:0@h3 worker:1@h4");
  EXPECT_EQ(Place("{ps: {count: 1}, worker: {count: 2}}", "hosts: {only: }"),
            "ps:0@only worker:0@only worker:1@only");
}

TEST(Placement, LeavesTasksThatRunWhereTheyAre) {
  const Inventory inventory = HostsOf("hosts: {a: {labels: [cpu]}, b: , c: , d: {labels: [cpu]}}");
  const auto place = [&](const std::string& replicas, const std::map<std::string, std::string>& running) {
    return TextOf(*PlaceTasks(JobWith(replicas), inventory, running), inventory);
  };
  EXPECT_EQ(place("{ps: {count: 1}, worker: {count: 4}}", {{"ps:0", "b"}, {"worker:0", "b"}}),
            "ps:0@b worker:0@b worker:1@a worker:2@c worker:3@d");
  EXPECT_EQ(place("{ps: {count: 1, on: cpu}, worker: {count: 1}}", {{"ps:0", "c"}, {"worker:0", "gone"}}),
            "ps:0@a worker:0@b")
      << "where they may not be, or nothing is known of";
  EXPECT_EQ(place("{ps: {count: 1}, worker: {count: 1}}", {{"worker:3", "a"}}), "ps:0@a worker:0@b")
      << "who is no task of the job takes no room";
}

TEST(Placement, GivesHostsTasksByTheirSlots) {
  const char* hosts = "hosts: {a: {slots: 3}, b: , c: {slots: 2}}";
  EXPECT_EQ(Place("{ps: {count: 1}, worker: {count: 5}}", hosts),
            "ps:0@a worker:0@b worker:1@c worker:2@a worker:3@c worker:4@a");
}

TEST(Placement, KeepsRolesToHostsWithTheirLabel) {
  const char* hosts =
      "hosts: {a: {labels: [cpu]}, g1: {labels: [gpu, fast]}, b: {labels: [cpu]}, g2: {labels: [gpu]}}";
  EXPECT_EQ(Place("{ps: {count: 3, on: cpu}, worker: {count: 3, on: gpu}}", hosts),
            "ps:0@a ps:1@b ps:2@a worker:0@g1 worker:1@g2 worker:2@g1");
  EXPECT_EQ(Place("{ps: {count: 1, on: fast}, worker: {count: 3}}", hosts),
            "ps:0@g1 worker:0@a worker:1@b worker:2@g2");
}

TEST(Placement, RolesThatFewerHostsSuitChooseFirst) {
  const char* hosts = "hosts: {g: {labels: [gpu]}, a: , b: }";
  EXPECT_EQ(Place("{ps: {count: 2}, worker: {count: 1, on: gpu}}", hosts), "ps:0@a ps:1@b worker:0@g");
}

TEST(Placement, TheBusiestAndTheIdlestHostOfOneRoleDifferByAtMostOneTask) {
  const Inventory inventory = HostsOf("hosts: {\"h[1:7]\": }");
  for (int workers = 1; workers <= 30; ++workers) {
    const Job job = JobWith(absl::StrFormat("{ps: {count: 5}, worker: {count: %d}}", workers));
    const auto placed = PlaceTasks(job, inventory);
    ASSERT_TRUE(placed.ok());
    EXPECT_EQ(placed->size(), static_cast<size_t>(workers) + 5);
    std::vector<int> counts(inventory.hosts.size());
    for (const PlacedTask& task : *placed) ++counts[task.host_index];
    const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
    EXPECT_LE(*most - *least, 1);
    EXPECT_EQ(*PlaceTasks(job, inventory), *placed);
  }
}

TEST(Placement, ALabelThatNoHostHasIsAnErrorAtItsPlace) {
  const char* hosts = "hosts: {a: {labels: [cpu, big]}, g1: {labels: [gpu]}}";
  EXPECT_EQ(Place("{ps: {count: 1, on: gpus}, worker: {count: 1}}", hosts),
            "job.yaml:3:31: no host in inv.yaml has the label \"gpus\"; did you mean \"gpu\"? labels there: "
            "big, cpu, gpu");
  EXPECT_EQ(Place("{ps: {count: 1}, worker: {count: 1, on: arm64}}", hosts),
            "job.yaml:3:51: no host in inv.yaml has the label \"arm64\"; labels there: big, cpu, gpu");
  EXPECT_EQ(Place("{ps: {count: 1}, worker: {count: 1, on: gpu}}", "hosts: {a: }"),
            "job.yaml:3:51: no host in inv.yaml has the label \"gpu\"; labels there: none");
}

}  // namespace
}  // namespace muster
