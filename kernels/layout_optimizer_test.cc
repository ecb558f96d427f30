#include "kernels/layout_optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/random.h"

namespace muster {
namespace {

constexpr float kScale = 1.0f / 7;
constexpr int kSteps = 30;

// Groups 0, 0, 1, 0: two neighbours, and one group in two places. Every tensor has padding behind it.
ParameterLayout TwoGroups() {
  return *ParameterLayout::Create(
      {{.name = "w0", .shape = {37, 5}, .initializer = Initializer::kUniform, .scale = 0.5f},
       {.name = "b0", .shape = {5}, .initializer = Initializer::kUniform, .scale = 0.5f},
       {.name = "wide", .shape = {67}, .optimizer_group = 1},
       {.name = "b1", .shape = {3}, .initializer = Initializer::kUniform, .scale = 0.5f}});
}

const std::vector<OptimizerConfig> kConfigs = {
    {.kind = OptimizerKind::kAdam,
     .learning_rate = 0.01f,
     .weight_decay = 0.01f,
     .schedule = {.kind = ScheduleKind::kCosine, .decay_steps = 40, .warmup_steps = 5}},
    {.kind = OptimizerKind::kFtrl, .learning_rate = 0.2f, .l1 = 0.1f, .l2 = 0.1f}};

std::vector<float> Initial(const ParameterLayout& layout) {
  std::vector<float> parameters(layout.size());
  layout.Initialize(1, {0, layout.size()}, parameters);
  return parameters;
}

// Padding gets a gradient too, which must not matter.
std::vector<float> GradientSum(int step, int64_t size) {
  RandomStream random(5, static_cast<uint64_t>(step));
  std::vector<float> gradient(size);
  for (float& g : gradient) g = static_cast<float>(14 * random.NextDouble() - 7);
  return gradient;
}

std::vector<float> TrainInShards(const ParameterLayout& layout, int count, bool in_place = true,
                                 bool from_source = false) {
  std::vector<float> parameters = Initial(layout);
  std::vector<LayoutOptimizer> optimizers;
  for (int i = 0; i < count; ++i) {
    optimizers.push_back(*LayoutOptimizer::Create(layout, layout.Shard(i, count), kConfigs));
  }
  for (int t = 0; t < kSteps; ++t) {
    const std::vector<float> gradient = GradientSum(t, layout.size());
    std::vector<float> updated(layout.size(), NAN);
    for (int i = 0; i < count; ++i) {
      const LayoutRange shard = layout.Shard(i, count);
      const auto part = [&](auto& values) { return std::span(values).subspan(shard.begin, shard.size()); };
      const std::span<float> out = in_place ? part(parameters) : part(updated);
      if (!from_source) {
        optimizers[i].Apply(part(parameters), part(gradient), kScale, out);
        continue;
      }
      int64_t next = 0;
      std::vector<float> block;
      const auto source = [&](LayoutRange range) -> std::span<const float> {
        EXPECT_EQ(range.begin, next);
        next = range.end;
        const std::span<const float> sums = part(gradient).subspan(range.begin, range.size());
        block.assign(sums.begin(), sums.end());
        return block;
      };
      optimizers[i].Apply(part(parameters), source, kScale, out);
      EXPECT_EQ(next, shard.size());
    }
    if (!in_place) parameters = updated;
  }
  return parameters;
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

TEST(LayoutOptimizer, GradientsThatAreMadeAsTheyAreNeededGiveTheSameBits) {
  const ParameterLayout small = TwoGroups();
  const ParameterLayout large = *ParameterLayout::Create(
      {{.name = "w", .shape = {100'003}, .initializer = Initializer::kUniform, .scale = 0.5f},
       {.name = "wide", .shape = {40'000}, .optimizer_group = 1}});
  for (const ParameterLayout* layout : {&small, &large}) {
    const std::vector<float> expected = TrainInShards(*layout, 1);
    for (const int count : {1, 3}) {
      for (const bool in_place : {true, false}) {
        EXPECT_TRUE(SameBits(TrainInShards(*layout, count, in_place, /*from_source=*/true), expected));
      }
    }
  }
}

// Each step is begun with another gradient and taken back, after as many floats as there are in front of it.
TEST(LayoutOptimizer, PartsGiveTheSameBitsAndWhatIsTakenBackLeavesNothing) {
  const ParameterLayout layout = *ParameterLayout::Create(
      {{.name = "w", .shape = {50'003}, .initializer = Initializer::kUniform, .scale = 0.5f},
       {.name = "wide", .shape = {20'000}, .optimizer_group = 1},
       {.name = "b", .shape = {3}, .initializer = Initializer::kUniform, .scale = 0.5f}});
  const LayoutRange all{0, layout.size()};
  const std::vector<float> expected = TrainInShards(layout, 1);
  LayoutOptimizer optimizer = *LayoutOptimizer::Create(layout, all, kConfigs);
  std::vector<float> parameters = Initial(layout);
  RandomStream random(3);
  const auto train = [&](int step, int64_t count) {
    const std::vector<float> gradient = GradientSum(step, layout.size());
    const auto source = [&](LayoutRange range) {
      return std::span(gradient).subspan(range.begin, range.size());
    };
    std::vector<float> updated(layout.size(), NAN);
    optimizer.Begin(kScale, /*may_be_taken_back=*/true);
    for (int64_t begin = 0; begin < count;) {
      const int64_t end = std::min(count, begin + static_cast<int64_t>(random.NextDouble() * 40'000));
      optimizer.ApplyPart({begin, end}, parameters, source, updated);
      begin = end;
    }
    return updated;
  };
  for (int t = 0; t < kSteps; ++t) {
    const int64_t taken_back = t % 3 == 0   ? layout.size()
                               : t % 3 == 1 ? 0
                                            : static_cast<int64_t>(random.NextDouble() * 70'000);
    train(kSteps + t, taken_back);
    optimizer.TakeBack();
    parameters = train(t, layout.size());
  }
  EXPECT_TRUE(SameBits(parameters, expected));
}

// Where each took as many products as there were updates, tests would run out of their time here.
TEST(LayoutOptimizer, WhatIsTakenBackAfterManyUpdatesLeavesNothing) {
  constexpr uint64_t kUpdates = 1'000'000;
  const ParameterLayout layout = *ParameterLayout::Create({{.name = "w", .shape = {1}}});
  // beta2's power still counts after so many.
  const std::vector<OptimizerConfig> configs = {{.kind = OptimizerKind::kAdam, .beta2 = 0.999999f}};
  const auto train = [&](int taken_back) {
    auto optimizer = *LayoutOptimizer::Create(layout, {0, layout.size()}, configs);
    optimizer.SkipTo(kUpdates);
    std::vector<float> parameters(layout.size(), 1);
    for (int step = 0; step < 3; ++step) {
      for (int i = 0; i < taken_back; ++i) {
        optimizer.Begin(kScale, /*may_be_taken_back=*/true);
        optimizer.TakeBack();
      }
      optimizer.Apply(parameters, GradientSum(step, layout.size()), kScale, parameters);
    }
    return parameters;
  };
  EXPECT_TRUE(SameBits(train(/*taken_back=*/100'000), train(0)));
}

TEST(LayoutOptimizer, UpdatesEachTensorByItsGroup) {
  const ParameterLayout layout = TwoGroups();
  const std::vector<float> all = TrainInShards(layout, 1);
  for (const LayoutTensor& tensor : layout.tensors()) {
    const std::vector<float> initial = Initial(layout);
    std::vector<float> values(initial.begin() + tensor.offset, initial.begin() + tensor.offset + tensor.size);
    const auto alone = MakeOptimizer(kConfigs[tensor.spec.optimizer_group], tensor.size);
    for (int t = 0; t < kSteps; ++t) {
      const std::vector<float> gradient = GradientSum(t, layout.size());
      alone->Apply(values, std::span(gradient).subspan(tensor.offset, tensor.size), kScale, values);
    }
    EXPECT_TRUE(SameBits(values, std::span(all).subspan(tensor.offset, tensor.size))) << tensor.spec.name;
  }
}

TEST(LayoutOptimizer, AnyShardingGivesTheSameBits) {
  const ParameterLayout layout = TwoGroups();
  const std::vector<float> whole = TrainInShards(layout, 1);
  EXPECT_FALSE(SameBits(whole, Initial(layout)));
  EXPECT_TRUE(SameBits(TrainInShards(layout, 1, /*in_place=*/false), whole));
  for (const int count : {2, 5, 40}) {  // 40: more than there are blocks
    EXPECT_TRUE(SameBits(TrainInShards(layout, count), whole)) << count;
  }
}

TEST(LayoutOptimizer, GoesOnFromItsSlotsWithTheSameBitsInAnyNumberOfShards) {
  const ParameterLayout layout = TwoGroups();
  std::vector<float> parameters = Initial(layout);
  auto whole = *LayoutOptimizer::Create(layout, {0, layout.size()}, kConfigs);
  const auto step = [&](LayoutOptimizer& optimizer, LayoutRange range, int t, std::vector<float>& values) {
    const std::vector<float> gradient = GradientSum(t, layout.size());
    const std::span<float> part = std::span(values).subspan(range.begin, range.size());
    optimizer.Apply(part, std::span(gradient).subspan(range.begin, range.size()), kScale, part);
  };
  for (int t = 0; t < kSteps; ++t) step(whole, {0, layout.size()}, t, parameters);
  ASSERT_EQ(whole.slot_count(), 2);
  std::vector<std::vector<float>> slots(2, std::vector<float>(layout.size()));
  for (int s = 0; s < 2; ++s) whole.CopySlot(s, slots[s]);
  for (const int count : {1, 3}) {
    std::vector<float> restored = parameters;
    auto reference = *LayoutOptimizer::Create(layout, {0, layout.size()}, kConfigs);
    for (int i = 0; i < count; ++i) {
      const LayoutRange range = layout.Shard(i, count);
      auto optimizer = *LayoutOptimizer::Create(layout, range, kConfigs);
      for (int s = 0; s < 2; ++s)
        optimizer.SetSlot(s, std::span(slots[s]).subspan(range.begin, range.size()));
      optimizer.SkipTo(kSteps);
      for (int t = kSteps; t < 2 * kSteps; ++t) step(optimizer, range, t, restored);
    }
    std::vector<float> initial = Initial(layout);
    for (int t = 0; t < 2 * kSteps; ++t) step(reference, {0, layout.size()}, t, initial);
    EXPECT_TRUE(SameBits(restored, initial)) << count;
  }
}

TEST(LayoutOptimizer, PaddingIsZeroWhateverIsInIt) {
  const ParameterLayout layout = TwoGroups();
  auto optimizer = LayoutOptimizer::Create(layout, {0, layout.size()}, kConfigs);
  ASSERT_TRUE(optimizer.ok()) << optimizer.status();
  std::vector<float> parameters(layout.size(), 3), gradient(layout.size(), NAN), updated(layout.size(), 5);
  for (const LayoutTensor& tensor : layout.tensors()) {
    std::fill_n(gradient.begin() + tensor.offset, tensor.size, 1.0f);
  }
  optimizer->Apply(parameters, gradient, 1, updated);
  std::vector<bool> is_padding(layout.size(), true);
  for (const LayoutTensor& tensor : layout.tensors()) {
    std::fill_n(is_padding.begin() + tensor.offset, tensor.size, false);
  }
  for (int64_t i = 0; i < layout.size(); ++i) {
    ASSERT_TRUE(std::isfinite(updated[i])) << i;
    if (is_padding[i]) {
      EXPECT_EQ(updated[i], 0) << i;
    } else {
      EXPECT_NE(updated[i], 5) << i;
    }
  }
}

TEST(LayoutOptimizer, RefusesGroupsWithoutAValidOptimizer) {
  const ParameterLayout layout = TwoGroups();
  for (const LayoutRange range : {LayoutRange{0, layout.size()}, LayoutRange{0, 16}, LayoutRange{16, 16}}) {
    const auto error = [&](std::vector<OptimizerConfig> configs) {
      const absl::Status status = LayoutOptimizer::Create(layout, range, configs).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      return std::string(status.message());
    };
    EXPECT_EQ(error({{}}), "tensor 'wide' is of optimizer group 1, for which there is no optimizer");
    EXPECT_EQ(error({{}, {.momentum = 1}}),
              "optimizer group 1: momentum of the optimizer sgd is 1, expected a number from 0 to below 1");
    EXPECT_TRUE(LayoutOptimizer::Create(layout, range, kConfigs).ok());
  }
}

}  // namespace
}  // namespace muster
