// What a step of training needs beside its layers: batches, dropout, the loss, the optimizers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/cross_entropy.h"
#include "kernels/cuda/batch.h"
#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/cuda_testing.h"
#include "kernels/cuda/dense.h"
#include "kernels/cuda/dropout.h"
#include "kernels/cuda/optimizer.h"
#include "kernels/dense_reference.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/kernel_testing.h"
#include "kernels/optimizer.h"
#include "kernels/step_factors.h"

namespace muster::cuda {
namespace {

template <typename T>
GuardedOnDevice<T> One(T value) {
  return GuardedOnDevice<T>(std::vector<T>{value});
}

using DropoutOnDevice = CudaTest;

TEST_F(DropoutOnDevice, DropsWhatTheCpuDrops) {
  constexpr int64_t kSamples = 5;
  for (const int64_t units : {1, 3, 4, 7, 64}) {
    for (const int64_t position : {int64_t{0}, int64_t{1000}, (int64_t{1} << 32) - 2}) {
      for (const float rate : {0.0f, 0.1f, 0.5f, 0.9f, 1 - FLT_EPSILON / 2}) {
        const Dropout dropout{.seed = 0x123456789abcdef0, .rate = rate};
        std::vector<float> factors(kSamples * units), expected(kSamples * units);
        const std::vector<float> x = RandomFloats(1, kSamples * units);
        DropoutFactors(dropout, position, kSamples, units, factors);
        muster::DropoutApply(factors, x, expected);
        const GuardedFloats input(x), output(kSamples * units);
        const auto first = One<int64_t>(position);
        ASSERT_EQ(DropoutApply(DropoutMask(dropout.seed, rate), first.data(), kSamples, units, input.data(),
                               output.data(), cudaStreamPerThread),
                  cudaSuccess);
        ASSERT_EQ(output.Read(), expected) << units << " units at " << position << ", rate " << rate;
      }
    }
  }
}

struct LossArguments {
  const float* logits;
  const int32_t* labels;
  float* gradient;
  bool add;
  LossScratch* scratch;
  LossSums* result;
};

struct ExpectedLoss {
  double loss;
  std::vector<double> gradient;
  int64_t correct;
};

// What `run` makes of a batch: result and gradient, the result added to one, the gradient in place.
template <typename Run>
void ExpectLoss(const std::vector<float>& x, const std::vector<int32_t>& labels_values,
                const ExpectedLoss& expected, double tolerance, const Run& run) {
  const GuardedFloats logits(x), gradient(static_cast<int64_t>(x.size()));
  const GuardedOnDevice<int32_t> labels(labels_values);
  const GuardedOnDevice<LossScratch> scratch(std::vector<LossScratch>(1));
  const GuardedOnDevice<LossSums> result(1);
  const auto pass = [&](float* into, bool add) {
    ASSERT_EQ(run(LossArguments{logits.data(), labels.data(), into, add, scratch.data(), result.data()}),
              cudaSuccess);
  };
  pass(gradient.data(), false);
  ExpectNear(gradient.Read(), expected.gradient, tolerance);
  EXPECT_NEAR(result.Read()[0].loss_sum, expected.loss,
              static_cast<double>(labels_values.size()) * tolerance);
  EXPECT_EQ(result.Read()[0].correct, expected.correct);
  const double once = result.Read()[0].loss_sum;
  pass(nullptr, true);
  EXPECT_EQ(result.Read()[0].loss_sum, 2 * once);
  EXPECT_EQ(result.Read()[0].correct, 2 * expected.correct);
  pass(logits.data(), false);
  EXPECT_EQ(logits.Read(), gradient.Read());
  EXPECT_EQ(result.Read()[0].loss_sum, once);
  EXPECT_EQ(scratch.Read()[0].finished, 0u);
}

class LossTest : public CudaTest, public ::testing::WithParamInterface<std::tuple<int, int>> {};

TEST_P(LossTest, MatchesTheReference) {
  const auto [batch, classes] = GetParam();
  std::vector<float> x = RandomFloats(5, int64_t{batch} * classes);
  for (float& value : x) value *= 20;
  const std::vector<int32_t> labels_values = RandomLabels(6, batch, classes);
  std::vector<double> expected_gradient;
  const double expected =
      ReferenceSoftmaxCrossEntropy(classes, Doubles(x), labels_values, &expected_gradient);
  std::vector<float> ignored(x.size());
  const int64_t correct = muster::SoftmaxCrossEntropy(classes, x, labels_values, ignored).correct;

  // As in kernels/cross_entropy_test.cc.
  ExpectLoss(x, labels_values, {.loss = expected, .gradient = expected_gradient, .correct = correct},
             24 * FLT_EPSILON, [&](const LossArguments& to) {
               return SoftmaxCrossEntropy(batch, classes, to.logits, to.labels, to.gradient, to.add,
                                          to.scratch, to.result, cudaStreamPerThread);
             });
}

INSTANTIATE_TEST_SUITE_P(Sizes, LossTest,
                         ::testing::Values(std::tuple(1, 1), std::tuple(3, 7), std::tuple(33, 10),
                                           std::tuple(64, 33), std::tuple(65, 10), std::tuple(200, 3),
                                           std::tuple(5000, 10), std::tuple(0, 3)));

using Loss = CudaTest;

TEST_F(Loss, SigmoidMatchesTheReference) {
  for (const int64_t batch : {0, 1, 7, 32, 200, 257, 50'000}) {
    std::vector<float> x = RandomFloats(7, batch);
    for (float& value : x) value *= 10;
    if (batch > 1) x[1] = 0;
    const std::vector<int32_t> labels_values = RandomLabels(8, batch, 2);
    std::vector<double> expected_gradient;
    const double expected = ReferenceSigmoidCrossEntropy(Doubles(x), labels_values, &expected_gradient);
    int64_t correct = 0;
    for (int64_t i = 0; i < batch; ++i) correct += (x[i] > 0) == (labels_values[i] == 1);
    // As in kernels/cross_entropy_test.cc.
    ExpectLoss(x, labels_values, {.loss = expected, .gradient = expected_gradient, .correct = correct},
               3 * FLT_EPSILON, [&](const LossArguments& to) {
                 return SigmoidCrossEntropy(batch, to.logits, to.labels, to.gradient, to.add, to.scratch,
                                            to.result, cudaStreamPerThread);
               });
  }
}

TEST_F(Loss, SigmoidIsStableAndKeepsVisibleWhatIsNot) {
  struct Case {
    float logit;
    int32_t label;
    double loss;
    float gradient;
    int64_t correct;
  };
  for (const Case& c : {Case{1000, 1, 0, 0, 1}, Case{-1000, 0, 0, 0, 1},
                        Case{-1e30f, 1, double{1e30f}, -1, 0}, Case{NAN, 0, NAN, NAN, 0},
                        Case{NAN, 1, NAN, NAN, 0}, Case{1, 2, NAN, NAN, 0}, Case{1, -1, NAN, NAN, 0}}) {
    const GuardedFloats logits(std::vector<float>{c.logit}), gradient(1);
    const auto label = One<int32_t>(c.label);
    const GuardedOnDevice<LossScratch> scratch(std::vector<LossScratch>(1));
    const GuardedOnDevice<LossSums> result(1);
    ASSERT_EQ(SigmoidCrossEntropy(1, logits.data(), label.data(), gradient.data(), false, scratch.data(),
                                  result.data(), cudaStreamPerThread),
              cudaSuccess);
    const auto same = [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); };
    EXPECT_TRUE(same(result.Read()[0].loss_sum, c.loss)) << c.logit << ", label " << c.label;
    EXPECT_TRUE(same(gradient.Read()[0], c.gradient)) << c.logit << ", label " << c.label;
    EXPECT_EQ(result.Read()[0].correct, c.correct) << c.logit << ", label " << c.label;
  }
}

TEST_F(Loss, WhatIsNotFiniteOrNoClassStaysVisible) {
  const std::vector<float> good = {1, 2, 3};
  struct Case {
    std::vector<float> logits;
    int32_t label;
  };
  for (const Case& bad : {Case{{1, NAN, 3}, 0}, Case{{NAN, NAN, NAN}, 0}, Case{{1, INFINITY, 3}, 2},
                          Case{good, 3}, Case{good, -1}}) {
    std::vector<float> x = bad.logits;
    x.insert(x.end(), good.begin(), good.end());
    const GuardedFloats logits(x), gradient(6);
    const GuardedOnDevice<int32_t> labels(std::vector<int32_t>{bad.label, 2});
    const GuardedOnDevice<LossScratch> scratch(std::vector<LossScratch>(1));
    const GuardedOnDevice<LossSums> result(1);
    ASSERT_EQ(SoftmaxCrossEntropy(2, 3, logits.data(), labels.data(), gradient.data(), false, scratch.data(),
                                  result.data(), cudaStreamPerThread),
              cudaSuccess);
    EXPECT_FALSE(std::isfinite(result.Read()[0].loss_sum));
    EXPECT_EQ(result.Read()[0].correct, 1);
    const std::vector<float> values = gradient.Read();
    EXPECT_TRUE(std::isnan(values[0]) || std::isnan(values[1]) || std::isnan(values[2]));
    for (int i = 3; i < 6; ++i) EXPECT_TRUE(std::isfinite(values[i]));
  }
}

using BatchOnDevice = CudaTest;

TEST_F(BatchOnDevice, HoldsTheSamplesAsTheCpuReadsThem) {
  constexpr int64_t kHeight = 5, kWidth = 3, kChannels = 2, kFeatures = kHeight * kWidth * kChannels,
                    kSize = 300;
  std::vector<uint8_t> bytes_values(kSize * kFeatures), labels_values(kSize);
  for (size_t i = 0; i < bytes_values.size(); ++i) bytes_values[i] = static_cast<uint8_t>(i * 7 + i / 256);
  for (size_t i = 0; i < labels_values.size(); ++i) labels_values[i] = static_cast<uint8_t>(i % 256);
  const std::vector<SampleSource> order = {{.index = 299, .shift_x = 0, .shift_y = 0},
                                           {.index = 0, .shift_x = 1, .shift_y = -2},
                                           {.index = 7, .shift_x = -2, .shift_y = 1},
                                           {.index = 300, .shift_x = 0, .shift_y = 0},
                                           {.index = -1, .shift_x = 0, .shift_y = 0}};
  const GuardedOnDevice<uint8_t> bytes(bytes_values), labels_of_set(labels_values);
  const GuardedOnDevice<SampleSource> sources(order);
  const ByteSamples samples{.bytes = bytes.data(),
                            .labels = labels_of_set.data(),
                            .size = kSize,
                            .height = kHeight,
                            .width = kWidth,
                            .channels = kChannels};
  const auto expect_sample = [&](std::span<const float> features, const SampleSource& source) {
    std::vector<float> image(kFeatures);
    BytesToUnitInterval(std::span(bytes_values).subspan(source.index * kFeatures, kFeatures), image);
    for (int64_t y = 0; y < kHeight; ++y) {
      for (int64_t x = 0; x < kWidth; ++x) {
        for (int64_t c = 0; c < kChannels; ++c) {
          const int64_t from_y = y - source.shift_y, from_x = x - source.shift_x;
          const bool inside = from_y >= 0 && from_y < kHeight && from_x >= 0 && from_x < kWidth;
          ASSERT_EQ(features[(y * kWidth + x) * kChannels + c],
                    inside ? image[(from_y * kWidth + from_x) * kChannels + c] : 0)
              << source.index << ": " << y << ", " << x << ", " << c;
        }
      }
    }
  };
  // Twice through the order, from its fourth entry on.
  constexpr int64_t kBatch = 10;
  const GuardedFloats features(kBatch * kFeatures);
  const GuardedOnDevice<int32_t> labels(kBatch);
  const auto position = One<int64_t>(1003);
  ASSERT_EQ(FillBatch(samples, sources.data(), 5, position.data(), kBatch, features.data(), labels.data(),
                      cudaStreamPerThread),
            cudaSuccess);
  const std::vector<float> values = features.Read();
  const std::vector<int32_t> label_values = labels.Read();
  for (int64_t i = 0; i < kBatch; ++i) {
    const SampleSource& source = order[(1003 + i) % 5];
    const std::span<const float> image = std::span(values).subspan(i * kFeatures, kFeatures);
    if (source.index < 0 || source.index >= kSize) {
      EXPECT_EQ(label_values[i], -1);
      for (const float value : image) EXPECT_TRUE(std::isnan(value));
    } else {
      EXPECT_EQ(label_values[i], labels_values[source.index]);
      expect_sample(image, source);
    }
  }
  // Without an order, past the end of the set.
  const auto near_end = One<int64_t>(298);
  ASSERT_EQ(
      FillBatch(samples, nullptr, 0, near_end.data(), 3, features.data(), labels.data(), cudaStreamPerThread),
      cudaSuccess);
  const std::vector<float> last = features.Read();
  expect_sample(std::span(last).first(kFeatures), {.index = 298, .shift_x = 0, .shift_y = 0});
  expect_sample(std::span(last).subspan(kFeatures, kFeatures), {.index = 299, .shift_x = 0, .shift_y = 0});
  EXPECT_EQ(labels.Read()[2], -1);
}

TEST_F(BatchOnDevice, OfATableHoldsItsNumbersAndIds) {
  constexpr int64_t kSize = 40, kFeatures = 3, kIds = 4, kBatch = 70;
  const std::vector<float> features_values = RandomFloats(1, kSize * kFeatures);
  const std::vector<int32_t> ids_values = RandomLabels(2, kSize * kIds, 1000);
  std::vector<uint8_t> labels_values(kSize);
  for (size_t i = 0; i < kSize; ++i) labels_values[i] = static_cast<uint8_t>(i % 2);
  std::vector<SampleSource> order;
  for (const int32_t index : RandomLabels(3, 50, kSize)) order.push_back({.index = index});
  order[3].index = kSize;
  order[4].index = -1;
  const GuardedFloats features_of_set(features_values), features(kBatch * kFeatures);
  const GuardedOnDevice<int32_t> ids(ids_values), indices(kIds * kBatch), labels(kBatch);
  const GuardedOnDevice<uint8_t> labels_of_set(labels_values);
  const GuardedOnDevice<SampleSource> sources(order);
  const TableSamples samples{.features = features_of_set.data(),
                             .ids = ids.data(),
                             .labels = labels_of_set.data(),
                             .size = kSize,
                             .feature_count = kFeatures,
                             .id_count = kIds};
  const auto expect = [&](const SampleSource* from, int64_t count, int64_t first, int64_t batch,
                          const auto& index_of) {
    const auto position = One<int64_t>(first);
    ASSERT_EQ(FillBatch(samples, from, count, position.data(), batch, features.data(), indices.data(),
                        labels.data(), cudaStreamPerThread),
              cudaSuccess);
    const std::vector<float> values = features.Read();
    const std::vector<int32_t> index_values = indices.Read(), label_values = labels.Read();
    for (int64_t slot = 0; slot < batch; ++slot) {
      const int64_t index = index_of(slot);
      const bool exists = index >= 0 && index < kSize;
      EXPECT_EQ(label_values[slot], exists ? labels_values[index] : -1) << slot;
      for (int64_t i = 0; i < kFeatures; ++i) {
        const float value = values[slot * kFeatures + i];
        EXPECT_TRUE(exists ? value == features_values[index * kFeatures + i] : std::isnan(value)) << slot;
      }
      for (int64_t i = 0; i < kIds; ++i) {
        EXPECT_EQ(index_values[i * batch + slot], exists ? ids_values[index * kIds + i] : -1) << slot;
      }
    }
  };
  expect(sources.data(), 50, 1033, kBatch, [&](int64_t slot) { return order[(1033 + slot) % 50].index; });
  expect(nullptr, 0, 35, 7, [](int64_t slot) { return 35 + slot; });
}

class UpdateTest : public CudaTest, public ::testing::WithParamInterface<OptimizerConfig> {
 protected:
  void Update(const StepFactors* factors, UpdateArrays arrays, float scale, float* first, float* second,
              const FiniteCheck& check) {
    const OptimizerConfig& c = GetParam();
    const GradientFactors gradient{scale, c.weight_decay};
    const cudaStream_t stream = cudaStreamPerThread;
    switch (c.kind) {
      case OptimizerKind::kSgd:
        return Expect(SgdUpdate(arrays, gradient, factors, check, stream));
      case OptimizerKind::kMomentum:
        return Expect(
            MomentumUpdate(arrays, gradient, factors, c.momentum, c.nesterov, first, check, stream));
      case OptimizerKind::kAdagrad:
        return Expect(AdagradUpdate(arrays, gradient, factors, first, check, stream));
      case OptimizerKind::kAdam:
        return Expect(AdamUpdate(arrays, gradient, factors, first, second, check, stream));
      case OptimizerKind::kFtrl:
        return Expect(FtrlUpdate(arrays, scale, factors, c.l1, 2 * c.l2, first, second, check, stream));
    }
  }

  // What the slots of that kind begin with.
  float FirstSlot() const {
    const OptimizerKind kind = GetParam().kind;
    const bool accumulates = kind == OptimizerKind::kAdagrad || kind == OptimizerKind::kFtrl;
    return accumulates ? GetParam().initial_accumulator : 0;
  }

 private:
  static void Expect(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }
};

TEST_P(UpdateTest, GivesTheBitsOfTheCpu) {
  for (const int64_t size : {1, 7, 1000, 700'000}) {
    const std::vector<float> initial = RandomFloats(1, size);
    std::vector<float> expected = initial;
    const auto optimizer = MakeOptimizer(GetParam(), size);
    StepFactorSequence sequence(GetParam());
    const GuardedFloats parameters(initial), first(std::vector<float>(size, FirstSlot())),
        second(std::vector<float>(size, 0.0f));
    const GuardedOnDevice<int64_t> ends(std::vector<int64_t>{size});
    const auto bad = One<int32_t>(99);
    constexpr float kScale = 1.0f / 3;
    for (uint64_t step = 0; step < 4; ++step) {
      std::vector<float> sums = RandomFloats(2 + step, size);
      sums[size / 2] = 0;
      const GuardedFloats gradient(sums);
      const auto factors = One<StepFactors>(sequence.Next());
      Update(factors.data(), {size, parameters.data(), gradient.data(), parameters.data()}, kScale,
             first.data(), second.data(), {ends.data(), 1, 0, bad.data()});
      parameters.Read();
      optimizer->Apply(expected, sums, kScale, expected);
    }
    EXPECT_EQ(parameters.Read(), expected) << size;
    first.Read();
    second.Read();
    EXPECT_EQ(bad.Read()[0], 99);
  }
}

// Moments that decay until they are subnormal numbers; the last of these updates clears them.
TEST_P(UpdateTest, ClearsWhatTheCpuClears) {
  constexpr int64_t kSize = 50, kUpdates = 128;
  const auto optimizer = MakeOptimizer(GetParam(), kSize);
  StepFactorSequence sequence(GetParam());
  std::vector<float> expected(kSize);
  const GuardedFloats parameters(expected), first(std::vector<float>(kSize, FirstSlot())),
      second(std::vector<float>(kSize, 0.0f)), gradient(std::vector<float>(kSize, 0.0f));
  std::vector<float> sums(kSize);
  for (int64_t i = 0; i < kSize; ++i) sums[i] = std::ldexp(1.0f, static_cast<int>(-100 - i));
  const GuardedFloats first_gradient(sums);
  const GuardedOnDevice<int64_t> ends(std::vector<int64_t>{kSize});
  const auto bad = One<int32_t>(99);
  for (int64_t update = 0; update < kUpdates; ++update) {
    const auto factors = One<StepFactors>(sequence.Next());
    const GuardedFloats& of_update = update == 0 ? first_gradient : gradient;
    Update(factors.data(), {kSize, parameters.data(), of_update.data(), parameters.data()}, 1, first.data(),
           second.data(), {ends.data(), 1, 0, bad.data()});
    parameters.Read();
    optimizer->Apply(expected, sums, 1, expected);
    std::fill(sums.begin(), sums.end(), 0.0f);
  }
  EXPECT_EQ(parameters.Read(), expected);
  const auto slots = optimizer->slots();
  for (size_t slot = 0; slot < slots.size(); ++slot) {
    EXPECT_TRUE(std::ranges::equal((slot == 0 ? first : second).Read(), slots[slot])) << slot;
  }
}

TEST_P(UpdateTest, NamesTheFirstTensorThatIsNotFinite) {
  constexpr int64_t kSize = 48;
  const std::vector<int64_t> ends_values = {16, 40, 64};  // of a buffer whose last 48 floats are updated
  for (const float not_finite : {NAN, INFINITY, -INFINITY}) {
    for (const auto& [places, tensor] :
         {std::pair(std::vector<int64_t>{0}, 1), std::pair(std::vector<int64_t>{23}, 1),
          std::pair(std::vector<int64_t>{47, 24}, 2), std::pair(std::vector<int64_t>{40, 3}, 1)}) {
      std::vector<float> sums(kSize, 0.5f);
      for (const int64_t place : places) sums[place] = not_finite;
      const GuardedFloats parameters(std::vector<float>(kSize, 1.0f)), gradient(sums),
          first(std::vector<float>(kSize, FirstSlot())), second(std::vector<float>(kSize, 0.0f));
      const auto factors = One<StepFactors>(StepFactorSequence(GetParam()).Next());
      const GuardedOnDevice<int64_t> ends(ends_values);
      const auto bad = One<int32_t>(99);
      Update(factors.data(), {kSize, parameters.data(), gradient.data(), parameters.data()}, 1, first.data(),
             second.data(), {ends.data(), 3, 16, bad.data()});
      EXPECT_EQ(bad.Read()[0], tensor);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Optimizers, UpdateTest,
    ::testing::Values(
        OptimizerConfig{.kind = OptimizerKind::kSgd, .learning_rate = 0.5f},
        OptimizerConfig{.kind = OptimizerKind::kSgd, .learning_rate = 0.5f, .weight_decay = 0.01f},
        OptimizerConfig{.kind = OptimizerKind::kMomentum,
                        .learning_rate = 0.1f,
                        .weight_decay = 0.01f,
                        .schedule = {.kind = ScheduleKind::kInverse, .gamma = 0.1f, .power = 0.75f}},
        OptimizerConfig{.kind = OptimizerKind::kMomentum, .learning_rate = 0.1f, .nesterov = true},
        OptimizerConfig{.kind = OptimizerKind::kAdagrad, .learning_rate = 0.05f},
        OptimizerConfig{.kind = OptimizerKind::kAdam, .learning_rate = 0.001f, .weight_decay = 0.01f},
        OptimizerConfig{.kind = OptimizerKind::kFtrl, .learning_rate = 0.2f, .l1 = 0.01f, .l2 = 0.02f}),
    [](const auto& info) { return OptimizerName(info.param.kind) + "_" + std::to_string(info.index); });

using Graphs = CudaTest;

TEST_F(Graphs, RunWhatWasCapturedAndNothingBefore) {
  const auto stream = MakeStream();
  ASSERT_TRUE(stream.ok()) << stream.status();
  const GuardedFloats bias(std::vector<float>{1, 2, 3}), values(std::vector<float>(6));
  const auto add = [&] {
    return ToStatus(AddBiasRelu(2, 3, bias.data(), values.data(), stream->get()), "AddBiasRelu");
  };
  ASSERT_TRUE(add().ok());
  const auto graph = Capture(stream->get(), add);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(values.Read(), (std::vector<float>{1, 2, 3, 1, 2, 3}));
  for (int i = 0; i < 2; ++i) ASSERT_EQ(cudaGraphLaunch(graph->get(), stream->get()), cudaSuccess);
  EXPECT_EQ(values.Read(), (std::vector<float>{3, 6, 9, 3, 6, 9}));
}

TEST_F(Graphs, ACaptureThatFailsLeavesTheStreamUsable) {
  const auto stream = MakeStream();
  ASSERT_TRUE(stream.ok()) << stream.status();
  EXPECT_FALSE(Capture(stream->get(), [] { return Internal("not today"); }).ok());
  const GuardedFloats bias(std::vector<float>{1}), values(std::vector<float>{1});
  ASSERT_EQ(AddBiasRelu(1, 1, bias.data(), values.data(), stream->get()), cudaSuccess);
  EXPECT_EQ(values.Read(), std::vector<float>{2});
}

}  // namespace
}  // namespace muster::cuda
