#include "trainer/replica_checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>

#include "base/file.h"
#include "ps/job_config.h"
#include "tests/support/eventually.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

class ReplicaCheckpointsTest : public testing::Test {
 protected:
  ReplicaCheckpointsTest()
      : layout_(*ParameterLayout::Create(
            {{.name = "w", .shape = {40}, .initializer = Initializer::kUniform, .scale = 1}})) {}

  ps::JobConfig Config(uint64_t seed = 1) const {
    const std::vector<OptimizerConfig> optimizers = {{.kind = OptimizerKind::kAdam}};
    const UpdateConfig update{.rule = {.mode = UpdateMode::kSync, .worker_count = 2}};
    ps::JobConfig config = MakeJobConfig(layout_, {}, update, optimizers, seed);
    config.set_model("w");
    config.set_global_batch_size(10);
    return config;
  }
  ReplicaCheckpointsOptions Options(const std::string& name = "a", uint64_t seed = 1) const {
    return {.folder = folder_.path() / name, .every = 5, .keep = 2, .name = name, .config = Config(seed)};
  }
  ReplicaState StateOf(uint64_t step) const {
    const auto size = static_cast<size_t>(layout_.size());
    const auto value = static_cast<float>(step);
    return {.step = step,
            .parameters = std::vector<float>(size, value),
            .slots = {std::vector<float>(size, value + 0.25f), std::vector<float>(size, value + 0.5f)}};
  }
  // Those of these steps, each before the next one is begun.
  void Write(const std::string& name, const std::vector<uint64_t>& steps, uint64_t group = 7) const {
    ReplicaCheckpoints checkpoints(Options(name));
    checkpoints.BeginGroup(group, steps.front() - 1);
    for (const uint64_t step : steps) {
      checkpoints.Write(StateOf(step));
      const auto manifest = folder_.path() / name / absl::StrFormat("step-%012d", step) / "manifest";
      ASSERT_TRUE(Eventually([&] { return std::filesystem::exists(manifest); })) << step;
    }
  }
  void Damage(const std::string& name, uint64_t step) const {
    const auto path = folder_.path() / name / absl::StrFormat("step-%012d", step) / "shard-00000-of-00001";
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    ASSERT_TRUE(file);
    file.seekp(-3, std::ios::end);
    file.put('?');
  }

  const ParameterLayout layout_;
  const TemporaryDirectory folder_;
};

TEST_F(ReplicaCheckpointsTest, TheNewestComesBackWithAllThatUpdatesAreMadeFrom) {
  Write("a", {5, 10, 15});
  const auto read = ReplicaCheckpoints(Options()).ReadNewest();
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_TRUE(read->has_value());
  const ReplicaState expected = StateOf(15);
  EXPECT_EQ((*read)->state.step, 15u);
  EXPECT_EQ((*read)->state.parameters, expected.parameters);
  EXPECT_EQ((*read)->state.slots, expected.slots);
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "a" / "step-000000000005")) << "two are kept";
}

TEST_F(ReplicaCheckpointsTest, OnesOfEqualBitsAreTheSame) {
  Write("a", {5});
  Write("b", {5});
  Write("c", {5}, /*group=*/8);
  const auto digest = [&](const std::string& name) {
    return ReplicaCheckpoints(Options(name)).ReadNewest()->value().digest;
  };
  EXPECT_EQ(digest("a"), digest("b"));
  EXPECT_NE(digest("a"), digest("c")) << "a group of others adds up in another order";
}

TEST_F(ReplicaCheckpointsTest, ADamagedOneGivesWayToTheOneBefore) {
  EXPECT_EQ(ReplicaCheckpoints(Options()).ReadNewest()->has_value(), false);
  Write("a", {5, 10});
  Damage("a", 10);
  EXPECT_EQ(ReplicaCheckpoints(Options()).ReadNewest()->value().state.step, 5u);
  ReplicaCheckpoints opened(Options());
  Damage("a", 5);
  EXPECT_TRUE(absl::IsDataLoss(opened.ReadNewest().status())) << "since it was looked at";
  ReplicaCheckpoints none(Options());
  const absl::Status status = none.ReadNewest().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("a can go on from none of the 2 checkpoints"));
  none.BeginGroup(9, 0);
  EXPECT_FALSE(none.IsDue(5)) << "nothing is written over them";
}

TEST_F(ReplicaCheckpointsTest, OneOfAnotherJobIsRefused) {
  Write("a", {5});
  const absl::Status status = ReplicaCheckpoints(Options("a", /*seed=*/2)).ReadNewest().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("seed: 1 -> 2"));
  ReplicaCheckpoints other(Options("a", /*seed=*/2));
  EXPECT_FALSE(other.ReadNewest().ok());
  other.BeginGroup(9, 0);
  EXPECT_FALSE(other.IsDue(5));
  EXPECT_EQ(ReplicaCheckpoints(Options()).ReadNewest()->value().state.step, 5u) << "it is still there";
}

TEST_F(ReplicaCheckpointsTest, OneThatCannotBeCommittedIsLeftOut) {
  ReplicaCheckpointsOptions options = Options();
  std::atomic<int> commits = 0;
  const std::filesystem::path step_folder = folder_.path() / "a/step-000000000005";
  options.hook = [&](const std::string& operation) {
    if (operation != "commit" || commits++ > 0) return;
    std::filesystem::remove_all(step_folder);
    std::ofstream(step_folder) << "a file";
  };
  {
    ReplicaCheckpoints checkpoints(options);
    checkpoints.BeginGroup(7, 4);
    checkpoints.Write(StateOf(5));
    EXPECT_TRUE(Eventually([&] { return commits > 0; }));
  }
  EXPECT_EQ(commits, 1);
}

TEST_F(ReplicaCheckpointsTest, WhatWillBeDoneAgainIsRemoved) {
  Write("a", {5, 10});
  ReplicaCheckpoints checkpoints(Options());
  checkpoints.BeginGroup(9, 7);
  EXPECT_TRUE(checkpoints.IsDue(10));
  EXPECT_FALSE(checkpoints.IsDue(9));
  EXPECT_EQ(ReplicaCheckpoints(Options()).ReadNewest()->value().state.step, 5u);
}

}  // namespace
}  // namespace muster
