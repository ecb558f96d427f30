#include "ps/job_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/layout_optimizer.h"

namespace muster {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

ParameterLayout TwoGroups() {
  return *ParameterLayout::Create(
      {{.name = "w", .shape = {3, 2}, .initializer = Initializer::kUniform, .scale = 0.5f},
       {.name = "wide", .shape = {7}, .optimizer_group = 1}});
}

// No field has the value that it has by default, or the one of another field.
const std::vector<OptimizerConfig> kOptimizers = {
    {.kind = OptimizerKind::kMomentum,
     .learning_rate = 0.25f,
     .weight_decay = 0.01f,
     .momentum = 0.8f,
     .nesterov = true,
     .beta1 = 0.7f,
     .beta2 = 0.6f,
     .epsilon = 1e-3f,
     .initial_accumulator = 0.3f,
     .schedule = {.kind = ScheduleKind::kCosine,
                  .gamma = 0.2f,
                  .power = 0.4f,
                  .step_size = 5,
                  .decay_steps = 100,
                  .final_fraction = 0.125f,
                  .warmup_steps = 7}},
    {.kind = OptimizerKind::kFtrl, .learning_rate = 0.2f, .l1 = 0.5f, .l2 = 0.75f},
};

const std::vector<TableSpec> kTables = {
    {.name = "deep/a", .rows = 5, .width = 3, .initializer = Initializer::kTruncatedNormal, .scale = 0.25f},
    {.name = "wide/b", .rows = 1'000'000, .width = 1, .optimizer_group = 1}};

ps::JobConfig Config(const UpdateConfig& update = {.rule = {.mode = UpdateMode::kSync, .worker_count = 3}}) {
  return MakeJobConfig(TwoGroups(), kTables, update, kOptimizers, 7);
}

TEST(JobConfigTest, ParametersMayAllBeInTables) {
  const std::vector<TableSpec> tables = {{.name = "t", .rows = 5, .width = 2}};
  const std::vector<OptimizerConfig> optimizers(1);
  const UpdateConfig update{.rule = {.worker_count = 1}};
  const auto layout = LayoutOf(MakeJobConfig(ParameterLayout(), tables, update, optimizers, 1));
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->size(), 0);
  const absl::Status nothing = LayoutOf(MakeJobConfig(ParameterLayout(), {}, update, optimizers, 1)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(nothing)) << nothing;
}

TEST(JobConfig, ComesBackAsItWas) {
  ps::JobConfig config;
  ASSERT_TRUE(config.ParseFromString(Config().SerializeAsString()));
  const auto layout = LayoutOf(config);
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->Hash(), TwoGroups().Hash());
  EXPECT_EQ(layout->tensors()[1].spec.optimizer_group, 1);
  const auto optimizers = OptimizersOf(config);
  ASSERT_TRUE(optimizers.ok()) << optimizers.status();
  EXPECT_THAT(*optimizers, ElementsAreArray(kOptimizers));
  const auto tables = TablesOf(config);
  ASSERT_TRUE(tables.ok()) << tables.status();
  EXPECT_THAT(*tables, ElementsAreArray(kTables));
  EXPECT_EQ(UpdateOf(config)->rule.mode, UpdateMode::kSync);
  EXPECT_EQ(config.worker_count(), 3u);
  EXPECT_EQ(config.seed(), 7u);
}

TEST(JobConfig, HowUpdatesAreMadeComesBack) {
  const UpdateConfig sync =
      *UpdateOf(Config({.rule = {.mode = UpdateMode::kSync, .worker_count = 5}, .aggregate = 3}));
  EXPECT_EQ(sync.aggregate, 3);
  EXPECT_EQ(sync.rule.worker_count, 5);
  EXPECT_EQ(UpdateOf(Config())->aggregate, 3) << "those of all workers";
  const UpdateConfig bounded =
      *UpdateOf(Config({.rule = {.mode = UpdateMode::kBounded, .worker_count = 2, .staleness = 4}}));
  EXPECT_EQ(bounded.rule.mode, UpdateMode::kBounded);
  EXPECT_EQ(bounded.rule.staleness, 4u);
  const UpdateConfig compressed = *UpdateOf(
      Config({.rule = {.worker_count = 1}, .compression = {.wire_type = ps::FLOAT16, .top_k = 0.25}}));
  EXPECT_EQ(compressed.compression.wire_type, ps::FLOAT16);
  EXPECT_EQ(compressed.compression.top_k, 0.25);
  EXPECT_FALSE(compressed.eviction.is_on());
  const UpdateConfig evicting =
      *UpdateOf(Config({.rule = {.worker_count = 1}, .eviction = {.every = 20, .after = 3}}));
  EXPECT_EQ(evicting.eviction.every, 20u);
  EXPECT_EQ(evicting.eviction.after, 3u);
  const auto async =
      UpdateOf(Config({.rule = {.mode = UpdateMode::kAsync, .worker_count = 2, .max_staleness = 0}}));
  EXPECT_EQ(async->rule.max_staleness, 0u);
  EXPECT_FALSE(async->rule.scale_rate);
  EXPECT_EQ(UpdateOf(Config({.rule = {.mode = UpdateMode::kAsync, .worker_count = 2}}))->rule.max_staleness,
            std::nullopt);
}

TEST(JobConfig, MoreWorkersThanThereCanBeAreRefused) {
  for (const uint32_t count : {100'001u, 1u << 31, 4'294'967'295u}) {
    ps::JobConfig config = Config({.rule = {.mode = UpdateMode::kAsync, .worker_count = 1}});
    config.set_worker_count(count);
    config.set_aggregate(count);
    EXPECT_EQ(UpdateOf(config).status().code(), absl::StatusCode::kInvalidArgument) << count;
  }
}

TEST(JobConfig, NumbersThatDoNotFitTheModeAreRefused) {
  const auto error = [](const UpdateConfig& update) {
    return std::string(UpdateOf(Config(update)).status().message());
  };
  EXPECT_THAT(error({.rule = {.mode = UpdateMode::kSync, .worker_count = 2}, .aggregate = 3}),
              HasSubstr("3 contributions of 2 workers"));
  EXPECT_THAT(error({.rule = {.mode = UpdateMode::kAsync, .worker_count = 2}, .aggregate = 1}),
              HasSubstr("cannot make a step of this mode"));
  EXPECT_THAT(error({.rule = {.mode = UpdateMode::kSync, .staleness = 1}}),
              HasSubstr("needs the bounded mode"));
  EXPECT_THAT(error({.rule = {.mode = UpdateMode::kSync, .max_staleness = 1}}),
              HasSubstr("asynchronous mode"));
  EXPECT_THAT(error({.rule = {.mode = UpdateMode::kAsync, .scale_rate = true}}),
              HasSubstr("ftrl takes no rate"));
  const UpdateRuleOptions async{.mode = UpdateMode::kAsync, .worker_count = 1};
  for (const double top_k : {-0.1, 1.0, static_cast<double>(NAN)}) {
    EXPECT_THAT(error({.rule = async, .compression = {.top_k = top_k}}),
                HasSubstr("is no part of a gradient"));
  }
  EXPECT_THAT(error({.rule = async, .eviction = {.every = 0, .after = 2}}),
              HasSubstr("dropped after 2 times 0"));
  EXPECT_THAT(error({.rule = async, .compression = {.wire_type = static_cast<ps::WireType>(3)}}),
              HasSubstr("wire type 3"));
}

TEST(JobConfig, EveryInitializerComesBack) {
  std::vector<TensorSpec> tensors;
  for (uint32_t kind = 0; kind <= static_cast<uint32_t>(Initializer::kConstant); ++kind) {
    tensors.push_back({.name = std::to_string(kind),
                       .shape = {3},
                       .initializer = static_cast<Initializer>(kind),
                       .scale = 0.1f});
  }
  const ParameterLayout layout = *ParameterLayout::Create(tensors);
  ps::JobConfig config =
      MakeJobConfig(layout, kTables, {.rule = {.mode = UpdateMode::kSync}}, kOptimizers, 7);
  EXPECT_TRUE(LayoutOf(config).ok()) << LayoutOf(config).status();
  config.mutable_tensors(0)->set_initializer(static_cast<uint32_t>(tensors.size()));
  EXPECT_THAT(LayoutOf(config).status().message(), HasSubstr("initializer 4, which this version does not"));
  EXPECT_TRUE(TablesOf(config).ok());
  config.mutable_tables(1)->set_initializer(4);
  EXPECT_THAT(TablesOf(config).status().message(), HasSubstr("table wide/b has initializer 4"));
}

TEST(JobConfig, ADifferenceIsNamed) {
  const ps::JobConfig first = Config();
  EXPECT_TRUE(CheckSameJob(first, Config()).ok());
  const auto error = [&](auto change) {
    ps::JobConfig other = Config();
    change(other);
    const absl::Status status = CheckSameJob(first, other);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    return std::string(status.message());
  };
  EXPECT_THAT(error([](ps::JobConfig& c) { c.set_model("lenet"); }), HasSubstr("this worker trains lenet"));
  EXPECT_THAT(error([](ps::JobConfig& c) { c.set_layout_hash(1); }), HasSubstr("is 0000000000000001"));
  EXPECT_THAT(error([](ps::JobConfig& c) { c.set_training_set_crc32c(1); }),
              HasSubstr("training_set_crc32c"));
  EXPECT_THAT(error([](ps::JobConfig& c) { c.set_global_batch_size(1); }), HasSubstr("global_batch_size"));
  EXPECT_THAT(error([](ps::JobConfig& c) { c.set_augment_shift(true); }), HasSubstr("augment_shift"));
  EXPECT_THAT(error([](ps::JobConfig& c) { c.mutable_tables(1)->set_rows(7); }), HasSubstr("tables[1].rows"));
}

// As a server does.
absl::Status Adopt(const ps::JobConfig& config) {
  MUSTER_ASSIGN_OR_RETURN(const ParameterLayout layout, LayoutOf(config));
  MUSTER_ASSIGN_OR_RETURN(const std::vector<OptimizerConfig> optimizers, OptimizersOf(config));
  return LayoutOptimizer::Create(layout, {0, layout.size()}, optimizers).status();
}

TEST(JobConfig, OptimizersAreChecked) {
  EXPECT_TRUE(Adopt(Config()).ok()) << Adopt(Config());
  const auto error = [](auto change) {
    ps::JobConfig config = Config();
    change(config);
    const absl::Status status = Adopt(config);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(error([](auto& c) { c.mutable_optimizers(1)->set_kind(5); }),
            "optimizer group 1: optimizer 5 is not one that this version knows");
  EXPECT_EQ(error([](auto& c) { c.mutable_optimizers(0)->mutable_schedule()->set_kind(4); }),
            "optimizer group 0: learning-rate schedule 4 is not one that this version knows");
  EXPECT_EQ(
      error([](auto& c) { c.mutable_optimizers(0)->set_momentum(1); }),
      "optimizer group 0: momentum of the optimizer momentum is 1, expected a number from 0 to below 1");
  EXPECT_THAT(error([](auto& c) {
                c.mutable_optimizers(1)->set_learning_rate(std::numeric_limits<float>::quiet_NaN());
              }),
              HasSubstr("optimizer group 1: learning_rate"));
  EXPECT_THAT(error([](auto& c) { c.mutable_optimizers(0)->mutable_schedule()->clear_decay_steps(); }),
              HasSubstr("optimizer group 0: decay_steps"));
  EXPECT_EQ(error([](auto& c) { c.mutable_optimizers()->RemoveLast(); }),
            "tensor 'wide' is of optimizer group 1, for which there is no optimizer");
  EXPECT_THAT(error([](auto& c) { c.clear_optimizers(); }), HasSubstr("tensor 'w' is of optimizer group 0"));
}

TEST(JobConfig, AGroupBeyondEveryNumberIsRefused) {
  ps::JobConfig config = Config();
  config.mutable_tensors(0)->set_optimizer_group(std::numeric_limits<uint32_t>::max());
  EXPECT_EQ(LayoutOf(config).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace muster
