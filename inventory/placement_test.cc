#include "inventory/placement.h"

#include <absl/strings/str_join.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <span>

namespace muster {
namespace {

Inventory HostsOf(std::string_view text) {
  const auto inventory = ParseInventory(text, "inv.yaml", "/home/me");
  EXPECT_TRUE(inventory.ok()) << inventory.status();
  return inventory.ok() ? *inventory : Inventory{};
}

Job JobWith(const std::string& replicas, const std::string& work = "model: mnist_softmax") {
  const auto job = ParseJob("name: j\n" + work + "\nreplicas: " + replicas + "\n", "job.yaml", "/home/me");
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? *job : Job{};
}

// "ps:0@a ps:1@b worker:0@c", with GPUs "worker:0@a[0,1]"
std::string TextOf(const std::vector<PlacedTask>& placed, const Inventory& inventory) {
  std::string text;
  for (const PlacedTask& task : placed) {
    text += (text.empty() ? "" : " ") + task.Name() + "@" + inventory.hosts[task.host_index].name;
    if (!task.gpus.empty()) text += "[" + absl::StrJoin(task.gpus, ",") + "]";
  }
  return text;
}

// That, or the error.
std::string Place(const std::string& replicas, std::string_view hosts,
                  const std::string& work = "model: mnist_softmax", int exit_code = 2) {
  const Inventory inventory = HostsOf(hosts);
  const auto placed = PlaceTasks(JobWith(replicas, work), inventory);
  if (!placed.ok()) {
    EXPECT_EQ(ExitCodeFor(placed.status()), exit_code);
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
  const auto place = [&](const std::string& replicas, const std::map<std::string, TaskPlace>& running) {
    return TextOf(*PlaceTasks(JobWith(replicas), inventory, running), inventory);
  };
  EXPECT_EQ(place("{ps: {count: 1}, worker: {count: 4}}", {{"ps:0", {"b"}}, {"worker:0", {"b"}}}),
            "ps:0@b worker:0@b worker:1@a worker:2@c worker:3@d");
  EXPECT_EQ(place("{ps: {count: 1, on: cpu}, worker: {count: 1}}", {{"ps:0", {"c"}}, {"worker:0", {"gone"}}}),
            "ps:0@a worker:0@b")
      << "where they may not be, or nothing is known of";
  EXPECT_EQ(place("{ps: {count: 1}, worker: {count: 1}}", {{"worker:3", {"a"}}}), "ps:0@a worker:0@b")
      << "who is no task of the job takes no room";
}

TEST(Placement, GivesHostsTasksByTheirSlots) {
  const char* hosts = "hosts: {a: {slots: 3}, b: , c: {slots: 2}}";
  EXPECT_EQ(Place("{ps: {count: 1}, worker: {count: 5}}", hosts),
            "ps:0@a worker:0@b worker:1@c worker:2@a worker:3@c worker:4@a");
}

TEST(RoomForWorkers, IsWhatNoTaskHas) {
  const auto room = [](const std::string& replicas, std::string_view hosts,
                       const std::map<std::string, TaskPlace>& running) {
    return RoomForWorkers(JobWith(replicas), HostsOf(hosts), running);
  };
  const char* hosts = "hosts: {a: {slots: 3, labels: cpu}, b: , c: {slots: 2, labels: cpu}}";
  EXPECT_EQ(room("{ps: {count: 1}, worker: {count: 1}}", hosts, {{"ps:0", {"a"}}, {"worker:0", {"b"}}}), 4);
  EXPECT_EQ(room("{ps: {count: 1}, worker: {count: 1, on: cpu}}", hosts, {{"worker:0", {"a"}}}), 4);
  EXPECT_EQ(room("{ps: {count: 1}, worker: {count: 1, on: tpu}}", hosts, {}), 0);
  EXPECT_EQ(room("{ps: {count: 1}, worker: {count: 1}}", "hosts: {a: , b: }",
                 {{"ps:0", {"a"}}, {"worker:0", {"a"}}, {"worker:1", {"gone"}}}),
            1)
      << "a host with more than its share has no room, and takes none from others";

  const char* gpus = "hosts: {a: {gpus: [0, 1, 2]}, b: {gpus: []}, unknown: }";
  const std::map<std::string, TaskPlace> one = {{"worker:0", {"a", {1}}}};
  EXPECT_EQ(room("{ps: {count: 1}, worker: {count: 1, gpus: 1}}", gpus, one), 2);
  EXPECT_EQ(RoomForWorkers(JobWith("{worker: {count: 1, gpus: 2}}", "program: [train]"), HostsOf(gpus), one),
            1);
  EXPECT_EQ(room("{ps: {count: 1}, chief: {count: 1, gpus: 1}, worker: {count: 1}}", gpus, {}), 1)
      << "those without go where there are none for certain";
}

const std::string kProgram = "program: [train]";

TEST(Placement, ATaskStaysThoughAnotherHostWouldBeBetterForIt) {
  const Inventory inventory = HostsOf("hosts: {a: {gpus: [0, 1]}, b: {gpus: []}}");
  const auto placed = PlaceTasks(JobWith("{ps: {count: 1}, worker: {count: 1, gpus: 1}}"), inventory,
                                 {{"ps:0", {"a"}}, {"worker:0", {"a", {1}}}});
  ASSERT_TRUE(placed.ok()) << placed.status();
  EXPECT_EQ(TextOf(*placed, inventory), "ps:0@a worker:0@a[1]");
}

TEST(Placement, GivesTasksGpusOfTheirOwn) {
  const char* hosts = "hosts: {a: {gpus: [0, 1, 2, 3]}, b: {gpus: [5, 3]}, cpu: {gpus: []}}";
  EXPECT_EQ(Place("{worker: {count: 6, gpus: 1}}", hosts, kProgram),
            "worker:0@a[0] worker:1@b[3] worker:2@a[1] worker:3@a[2] worker:4@b[5] worker:5@a[3]");
  EXPECT_EQ(Place("{worker: {count: 3, gpus: 2}}", hosts, kProgram),
            "worker:0@a[0,1] worker:1@b[3,5] worker:2@a[2,3]");
  EXPECT_EQ(Place("{ps: {count: 2}, worker: {count: 2, gpus: 1}}", hosts),
            "ps:0@cpu ps:1@cpu worker:0@a[0] worker:1@b[3]");
  EXPECT_EQ(Place("{ps: {count: 1}, worker: {count: 1, gpus: 1}}", "hosts: {a: {gpus: [0]}}"),
            "ps:0@a worker:0@a[0]")
      << "no host is without";
  EXPECT_EQ(Place("{ps: {count: 1}, chief: {count: 1, gpus: 1}, worker: {count: 1, gpus: 1}}",
                  "hosts: {a: {gpus: [0, 1]}, b: }"),
            "ps:0@b chief:0@a[0] worker:0@a[1]");
}

TEST(Placement, LeavesTasksTheGpusThatTheyHave) {
  const Inventory inventory = HostsOf("hosts: {a: {gpus: [0, 1]}, b: {gpus: [0]}}");
  const auto place = [&](int workers, const std::map<std::string, TaskPlace>& running) {
    const std::string replicas = absl::StrFormat("{worker: {count: %d, gpus: 1}}", workers);
    return TextOf(*PlaceTasks(JobWith(replicas, kProgram), inventory, running), inventory);
  };
  EXPECT_EQ(place(2, {{"worker:0", {"a", {1}}}}), "worker:0@a[1] worker:1@b[0]");
  EXPECT_EQ(place(3, {{"worker:2", {"a", {0}}}}), "worker:0@b[0] worker:1@a[1] worker:2@a[0]");
  EXPECT_EQ(place(1, {{"worker:0", {"b", {7}}}}), "worker:0@a[0]") << "it is not there any more";
  EXPECT_EQ(place(1, {{"worker:0", {"b"}}}), "worker:0@a[0]") << "it had none";
}

TEST(Placement, LeavesTasksWhereNobodyKnowsWhatThereIs) {
  const Inventory inventory = HostsOf("hosts: {a: , b: {gpus: [0]}}");
  const auto place = [&](const std::string& worker, const std::map<std::string, TaskPlace>& running) {
    return TextOf(*PlaceTasks(JobWith("{worker: {" + worker + "}}", kProgram), inventory, running),
                  inventory);
  };
  EXPECT_EQ(place("count: 1, gpus: 1", {{"worker:0", {"a", {1}}}}), "worker:0@a[1]");
  EXPECT_EQ(place("count: 3, gpus: 1", {{"worker:0", {"a", {1}}}, {"worker:2", {"a", {0}}}}),
            "worker:0@a[1] worker:1@b[0] worker:2@a[0]")
      << "others do not go there";
  EXPECT_EQ(place("count: 1, gpus: 1", {{"worker:0", {"a", {0, 1}}}}), "worker:0@b[0]") << "it had two";
  EXPECT_EQ(place("count: 1", {{"worker:0", {"a", {1}}}}), "worker:0@a") << "it wants none any more";
}

TEST(Placement, WhatOneRoleTakesIsWhatOthersNeedLeast) {
  const char* hosts = "hosts: {a: {gpus: [0, 1]}, b: {gpus: [0]}}";
  EXPECT_EQ(Place("{chief: {count: 1, gpus: 1}, worker: {count: 1, gpus: 2}}", hosts, kProgram),
            "chief:0@b[0] worker:0@a[0,1]");
  EXPECT_EQ(Place("{ps: {count: 1, gpus: 1}, worker: {count: 1, gpus: 2}}", hosts, kProgram),
            "ps:0@b[0] worker:0@a[0,1]");
  EXPECT_EQ(Place("{chief: {count: 1, gpus: 3}, worker: {count: 2, gpus: 2}}",
                  "hosts: {a: {gpus: [0, 1, 2, 3]}, b: {gpus: [0, 1, 2]}}", kProgram),
            "chief:0@b[0,1,2] worker:0@a[0,1] worker:1@a[2,3]");
  EXPECT_EQ(Place("{chief: {count: 1, gpus: 1}, worker: {count: 2, gpus: 2}}", hosts, kProgram),
            "job.yaml:3:65: there are too few GPUs for 2 tasks of worker with 2 each, beside those of chief: "
            "a has 2, b has 1");
}

// Of a task: its GPUs, and the hosts where it may be.
struct Wanted {
  int gpus;
  std::vector<int> hosts;
};

// Whether there is any way to place them.
bool Fits(std::span<const Wanted> tasks, std::vector<int>* free) {
  if (tasks.empty()) return true;
  return std::ranges::any_of(tasks[0].hosts, [&](int host) {
    int& room = (*free)[host];
    if (room < tasks[0].gpus) return false;
    room -= tasks[0].gpus;
    const bool fits = Fits(tasks.subspan(1), free);
    room += tasks[0].gpus;
    return fits;
  });
}

// That PlaceTasks finds a way if and only if there is one, and gives nothing twice.
void ExpectPlacedIfItFits(const Job& job, const Inventory& inventory) {
  std::vector<Wanted> wanted;
  for (const ReplicaRole role : kReplicaRoles) {
    const ReplicaSpec& replica = job.replicas(role);
    wanted.insert(wanted.end(), replica.count, {replica.gpus, SuitableHosts(replica, inventory)});
  }
  std::vector<int> free;
  std::string text;
  for (const Host& host : inventory.hosts) {
    free.push_back(static_cast<int>(host.gpus->size()));
    text += absl::StrFormat("%s: %d on %s; ", host.name, host.gpus->size(), absl::StrJoin(host.labels, "+"));
  }
  const auto placed = PlaceTasks(job, inventory);
  ASSERT_EQ(placed.ok(), Fits(wanted, &free)) << text << placed.status();
  if (!placed.ok()) return;
  std::set<std::pair<int, int>> given;
  for (const PlacedTask& task : *placed) {
    for (const int gpu : task.gpus) EXPECT_TRUE(given.emplace(task.host_index, gpu).second) << text;
  }
}

TEST(Placement, AChiefAndWorkersFitWhereverThereIsAWay) {
  const std::vector<std::vector<std::string>> labels = {{}, {"chief"}, {"worker"}, {"chief", "worker"}};
  const std::vector<std::vector<int>> gpus = {{0}, {0, 1}, {0, 1, 2}, {0, 1, 2, 3}};
  Job job{.program = {"train"}};
  job.chief = {.count = 1, .on = "chief"};
  job.worker = {.on = "worker"};
  for (int code = 0; code < 4 * 4 * 4 * 4 * 4; ++code) {
    const auto digit = [code](int place) { return (code >> (2 * place)) & 3; };
    const Inventory inventory{.hosts = {{.name = "a", .labels = labels[digit(0)], .gpus = gpus[digit(1)]},
                                        {.name = "b", .labels = labels[digit(2)], .gpus = gpus[digit(3)]},
                                        {.name = "c", .labels = labels[3], .gpus = gpus[digit(4)]}}};
    for (job.chief.gpus = 1; job.chief.gpus <= 3; ++job.chief.gpus) {
      for (job.worker.gpus = 1; job.worker.gpus <= 3; ++job.worker.gpus) {
        for (job.worker.count = 1; job.worker.count <= 4; ++job.worker.count) {
          ASSERT_NO_FATAL_FAILURE(ExpectPlacedIfItFits(job, inventory));
        }
      }
    }
  }
}

TEST(Placement, AHostThatCouldNotBeAskedIsLeftToTasksWithGpus) {
  EXPECT_EQ(
      Place("{ps: {count: 1}, worker: {count: 1, gpus: 1}}", "hosts: {d: , c: {gpus: []}, a: {gpus: [0]}}"),
      "ps:0@c worker:0@a[0]");
  // One that nobody asked, as such tasks do not go there, is as any other.
  EXPECT_EQ(Place("{ps: {count: 1}, worker: {count: 1, gpus: 1, on: gpu}}",
                  "hosts: {d: , c: {gpus: [], labels: [gpu]}, a: {gpus: [0], labels: [gpu]}}"),
            "ps:0@d worker:0@a[0]");
}

TEST(Placement, SaysHowManyGpusThereAre) {
  EXPECT_EQ(
      Place("{ps: {count: 1}, worker: {count: 4, gpus: 1}}",
            "hosts: {a: {gpus: [0, 1]}, b: {gpus: [4]}, c: {gpus: []}, d: }", "model: mnist_softmax", 69),
      "job.yaml:3:53: there are too few GPUs for 4 tasks of worker with 1 each: a has 2, b has 1, d could "
      "not be asked")
      << "which may have them";
  EXPECT_EQ(
      Place("{worker: {count: 1, gpus: 1}}", "hosts: {a: {gpus: []}}", kProgram),
      "job.yaml:3:37: there are too few GPUs for 1 tasks of worker with 1 each: none of their hosts has any");
  EXPECT_EQ(Place("{worker: {count: 1, gpus: 2}}", "hosts: {a: {gpus: [0]}, b: {gpus: [0]}}", kProgram),
            "job.yaml:3:37: there are too few GPUs for 1 tasks of worker with 2 each: a has 1, b has 1");
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
