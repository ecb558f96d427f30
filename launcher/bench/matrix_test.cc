#include "launcher/bench/matrix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "inventory/job.h"
#include "inventory/placement.h"

namespace muster::bench {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::vector<std::string> Names(const std::vector<Cell>& cells) {
  std::vector<std::string> names;
  for (const Cell& cell : cells) {
    names.push_back(absl::StrFormat("%s %s %d+%d%s", cell.model, StrategyName(cell.strategy), cell.workers,
                                    cell.servers, cell.servers_on_workers ? " shared" : ""));
  }
  return names;
}

std::string Error(const MatrixOptions& options, int hosts = 4) {
  const auto cells = MakeMatrix(options, hosts);
  EXPECT_TRUE(absl::IsInvalidArgument(cells.status())) << cells.status();
  return std::string(cells.status().message());
}

TEST(Matrix, HasEachCombinationThatMeansSomethingOnce) {
  const auto cells = MakeMatrix({.models = {"mnist_mlp"}, .workers = {2, 3}, .servers = {1, 2}}, 5);
  ASSERT_TRUE(cells.ok()) << cells.status();
  EXPECT_THAT(Names(*cells),
              ElementsAre("mnist_mlp ps_async 2+1", "mnist_mlp ps_sync 2+1", "mnist_mlp allreduce 2+0",
                          "mnist_mlp ps_async 2+2", "mnist_mlp ps_sync 2+2", "mnist_mlp ps_async 3+1",
                          "mnist_mlp ps_sync 3+1", "mnist_mlp ps_backup 3+1", "mnist_mlp allreduce 3+0",
                          "mnist_mlp ps_async 3+2", "mnist_mlp ps_sync 3+2", "mnist_mlp ps_backup 3+2"));
}

TEST(Matrix, ModelsWithTablesGoHybrid) {
  const auto cells = MakeMatrix({.strategies = {Strategy::kAllReduce, Strategy::kHybrid},
                                 .models = {"wide_deep:minibatch", "mnist_cnn:deep"},
                                 .workers = {2}},
                                4);
  ASSERT_TRUE(cells.ok()) << cells.status();
  EXPECT_THAT(Names(*cells), ElementsAre("wide_deep:minibatch hybrid 2+1", "mnist_cnn:deep allreduce 2+0"));
}

TEST(Matrix, ServersHaveHostsOfTheirOwnAsLongAsThereAreEnough) {
  const MatrixOptions options{.strategies = {Strategy::kSyncServers}, .workers = {2, 3}, .servers = {1, 2}};
  EXPECT_THAT(Names(*MakeMatrix(options, 4)),
              ElementsAre("mnist_mlp ps_sync 2+1", "mnist_mlp ps_sync 2+2", "mnist_mlp ps_sync 3+1",
                          "mnist_mlp ps_sync 3+2 shared"));
  MatrixOptions shared = options;
  shared.servers_on_workers = true;
  EXPECT_THAT(Names(*MakeMatrix(shared, 4)),
              ElementsAre("mnist_mlp ps_sync 2+1 shared", "mnist_mlp ps_sync 2+2 shared",
                          "mnist_mlp ps_sync 3+1 shared", "mnist_mlp ps_sync 3+2 shared"));
}

TEST(Matrix, WhatCannotBeRunIsRefused) {
  EXPECT_THAT(Error({.workers = {5}}), HasSubstr("5 workers need as many hosts, and there are 4"));
  EXPECT_THAT(Error({.strategies = {Strategy::kHybrid}}), HasSubstr("strategy hybrid fits no model"));
  EXPECT_THAT(Error({.strategies = {Strategy::kAllReduce}, .models = {"wide_deep"}}),
              HasSubstr("strategy allreduce fits no model"));
  EXPECT_THAT(Error({.strategies = {Strategy::kBackupWorkers}, .workers = {2}}),
              HasSubstr("there is nothing to run"));
  EXPECT_THAT(Error({.models = {"mnist_mpl"}}),
              AllOf(StartsWith("--models mnist_mpl: unknown"), HasSubstr("did you mean \"mnist_mlp\"?")));
  EXPECT_THAT(Error({.models = {"mnist_cnn:deeep"}}),
              AllOf(StartsWith("--models mnist_cnn:deeep: "), Not(HasSubstr("bench:"))));
  EXPECT_THAT(Error({.device = "gpu"}), StartsWith("--device gpu: expected auto, cpu"));
  EXPECT_THAT(Error({.device = "cpu\", seed: 7, device: \"cpu"}),
              AllOf(StartsWith("--device cpu"), HasSubstr("duplicate key")));
  EXPECT_THAT(Error({.steps = 1'000'000'000}), StartsWith("--steps 1000000000 with 2 workers: expected"));
}

TEST(Matrix, EachCellIsAJobWithItsTasksInTheirPlaces) {
  const MatrixOptions options{
      .workers = {3}, .servers = {2}, .steps = 50, .batch_size = 32, .device = "wait:20", .eval_every = 10};
  Inventory inventory;
  for (int i = 0; i < 6; ++i) {
    // Of an MPI hostfile, say.
    inventory.hosts.push_back({.name = "h" + std::to_string(i), .labels = {"x"}, .slots = i == 0 ? 4 : 1});
  }
  const auto cells = MakeMatrix(options, 6);
  ASSERT_TRUE(cells.ok()) << cells.status();
  for (const Cell& cell : *cells) {
    SCOPED_TRACE(StrategyName(cell.strategy));
    const auto job = ParseJob(JobText(cell, options), "bench", "/");
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(job->train.steps, cell.strategy == Strategy::kAsyncServers ? 150 : 50);
    EXPECT_EQ(job->train.batch_size, 32);
    EXPECT_EQ(job->train.device, "wait:20");
    EXPECT_EQ(job->train.eval_every, 10);
    EXPECT_EQ(job->update.aggregate.value_or(0), cell.strategy == Strategy::kBackupWorkers ? 2 : 0);
    const Inventory hosts = HostsFor(cell, inventory);
    EXPECT_EQ(hosts.hosts.size(), static_cast<size_t>(cell.workers + cell.servers));
    const auto placed = PlaceTasks(*job, hosts);
    ASSERT_TRUE(placed.ok()) << placed.status();
    for (const PlacedTask& task : *placed) {
      EXPECT_EQ(task.host_index, task.role == ReplicaRole::kPs ? 3 + task.index : task.index) << task.Name();
    }
  }
}

}  // namespace
}  // namespace muster::bench
