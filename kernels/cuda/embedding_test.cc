// Id columns on a GPU give the bits of the CPU where order decides nothing, and stay within a bound where it
// does.
#include "kernels/cuda/embedding.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <string>

#include "kernels/cuda/cuda_testing.h"
#include "kernels/embedding.h"
#include "kernels/embedding_reference.h"
#include "kernels/kernel_testing.h"
#include "kernels/optimizer.h"
#include "kernels/step_factors.h"

namespace muster::cuda {
namespace {

using Kind = ColumnSource::Kind;

const cudaStream_t kStream = cudaStreamPerThread;

void ExpectSuccess(cudaError_t error) { ASSERT_EQ(error, cudaSuccess) << cudaGetErrorString(error); }

std::vector<int32_t> Times(std::vector<int32_t> values, int64_t factor) {
  for (int32_t& value : values) value *= static_cast<int32_t>(factor);
  return values;
}

std::vector<int32_t> Joined(const std::vector<std::vector<int32_t>>& columns) {
  std::vector<int32_t> all;
  for (const std::vector<int32_t>& column : columns) all.insert(all.end(), column.begin(), column.end());
  return all;
}

// Batches that end within a warp, at its end and behind it.
constexpr int64_t kBatches[] = {0, 1, 31, 32, 33, 100, 1000};

using InputOnDevice = CudaTest;

TEST_F(InputOnDevice, IsWhatTheCpuMakes) {
  constexpr int64_t kFeatures = 3, kWide = 17, kNarrow = 2, kBuckets = 5, kRows = 9;
  constexpr int64_t kStride = kFeatures + kWide + kBuckets + kNarrow;
  const std::vector<float> wide_rows = RandomFloats(1, kRows * kWide),
                           narrow_rows = RandomFloats(2, kRows * kNarrow);
  for (const int64_t samples : kBatches) {
    const std::vector<float> x = RandomFloats(3, samples * kFeatures);
    const std::vector<int32_t> wide_ids = RandomLabels(4, samples, kRows),
                               one_hot_ids = RandomLabels(5, samples, kBuckets),
                               narrow_offsets = Times(RandomLabels(6, samples, kRows), kNarrow);
    std::vector<float> expected(samples * kStride);
    for (int64_t s = 0; s < samples; ++s) std::copy_n(&x[s * kFeatures], kFeatures, &expected[s * kStride]);
    EmbeddingSum({.width = kWide, .stride = kStride, .begin = kFeatures}, Times(wide_ids, kWide), wide_rows,
                 expected);
    OneHot({.width = kBuckets, .stride = kStride, .begin = kFeatures + kWide}, one_hot_ids, 1, expected);
    EmbeddingSum({.width = kNarrow, .stride = kStride, .begin = kFeatures + kWide + kBuckets}, narrow_offsets,
                 narrow_rows, expected);

    const GuardedFloats features(x), wide(wide_rows), narrow(narrow_rows), input(samples * kStride);
    const GuardedOnDevice<int32_t> indices(Joined({wide_ids, one_hot_ids, narrow_offsets}));
    // A table as a whole, and packed rows.
    const GuardedOnDevice<ColumnSource> columns(std::vector<ColumnSource>{
        {.kind = Kind::kSample, .width = kFeatures, .rows = features.data(), .step = kFeatures},
        {.column = 0, .width = kWide, .begin = kFeatures, .rows = wide.data(), .step = kWide},
        {.kind = Kind::kOneHot, .column = 1, .width = kBuckets, .begin = kFeatures + kWide},
        {.column = 2,
         .width = kNarrow,
         .begin = kFeatures + kWide + kBuckets,
         .rows = narrow.data(),
         .step = 1}});
    ExpectSuccess(FillInput(columns.data(), 4, indices.data(), samples, kStride, input.data(), kStream));
    EXPECT_EQ(input.Read(), expected) << samples;
  }
}

TEST_F(InputOnDevice, WithoutAnIndexIsNan) {
  const GuardedFloats rows(std::vector<float>{1, 2}), input(2 * 3);
  const GuardedOnDevice<int32_t> indices(std::vector<int32_t>{-1, 1, 0, -1});
  const GuardedOnDevice<ColumnSource> columns(
      std::vector<ColumnSource>{{.column = 0, .width = 1, .rows = rows.data(), .step = 1},
                                {.kind = Kind::kOneHot, .column = 1, .width = 2, .begin = 1}});
  ExpectSuccess(FillInput(columns.data(), 2, indices.data(), 2, 3, input.data(), kStream));
  const std::vector<float> values = input.Read();
  EXPECT_TRUE(std::isnan(values[0]));
  EXPECT_EQ(values[1], 1);
  EXPECT_EQ(values[2], 0);
  EXPECT_EQ(values[3], 2);
  EXPECT_TRUE(std::isnan(values[4]) && std::isnan(values[5]));
}

using WideOnDevice = CudaTest;

TEST_F(WideOnDevice, HasTheBitsOfTheCpu) {
  constexpr int64_t kRows = 7;
  for (const int64_t width : {1, 3}) {
    const std::vector<float> bias_values = RandomFloats(1, width), a_rows = RandomFloats(2, kRows * width),
                             b_rows = RandomFloats(3, kRows * width);
    const GuardedFloats bias(bias_values), a(a_rows), b(b_rows);
    const GuardedOnDevice<ColumnSource> columns(std::vector<ColumnSource>{
        {.column = 1, .width = static_cast<int32_t>(width), .rows = a.data(), .step = width},
        {.column = 0, .width = static_cast<int32_t>(width), .rows = b.data(), .step = width}});
    for (const int64_t samples : kBatches) {
      const std::vector<float> deep = RandomFloats(4, samples * width);
      const std::vector<int32_t> a_ids = RandomLabels(5, samples, kRows),
                                 b_ids = RandomLabels(6, samples, kRows);
      const GuardedOnDevice<int32_t> indices(Joined({b_ids, a_ids}));
      const GuardedFloats beginning(deep), sums(samples * width);
      const auto expected = [&](std::vector<float> values) {
        for (int64_t i = 0; i < samples * width; ++i) values[i] += bias_values[i % width];
        const EmbeddingShape shape{.width = width, .stride = width};
        EmbeddingSum(shape, Times(a_ids, width), a_rows, values);
        EmbeddingSum(shape, Times(b_ids, width), b_rows, values);
        return values;
      };
      const auto add = [&](const float* from, float* to) {
        ExpectSuccess(AddWideColumns(columns.data(), 2, indices.data(), samples, width, from, bias.data(), to,
                                     kStream));
      };
      add(nullptr, sums.data());
      EXPECT_EQ(sums.Read(), expected(std::vector<float>(deep.size())));
      add(beginning.data(), beginning.data());
      EXPECT_EQ(beginning.Read(), expected(deep));
    }
  }
}

struct GradientCase {
  int64_t samples, rows;
  EmbeddingShape shape;
};

// Widths around what is added up at a time; all samples of one row, and most of rows of their own.
const GradientCase kGradientCases[] = {
    {0, 1, {.width = 1, .stride = 1}},
    {1, 1, {.width = 1, .stride = 1}},
    {1000, 1, {.width = 1, .stride = 3, .begin = 2}},
    {33, 5, {.width = 1, .stride = 1}},
    {200, 7, {.width = 7, .stride = 20, .begin = 13}},
    {64, 64, {.width = 8, .stride = 8}},
    {65, 9, {.width = 8, .stride = 53, .begin = 5}},
    {31, 3, {.width = 9, .stride = 10}},
    {100, 40, {.width = 33, .stride = 40, .begin = 1}},
    {3000, 2000, {.width = 2, .stride = 2}},
};

RowGradient GradientOf(const GradientCase& c, const GuardedFloats& matrix) {
  return {.matrix = matrix.data(),
          .stride = c.shape.stride,
          .begin = static_cast<int32_t>(c.shape.begin),
          .width = static_cast<int32_t>(c.shape.width)};
}

// Of rows that some sample names; the others hold what they held.
std::vector<float> PackedGradients(const GradientCase& c, const std::vector<int32_t>& offsets_values,
                                   const std::vector<float>& gradient) {
  const GuardedFloats matrix(gradient), packed(std::vector<float>(c.rows * c.shape.width));
  const GuardedOnDevice<int32_t> offsets(offsets_values);
  const GuardedOnDevice<RowGradient> gradients(std::vector<RowGradient>{GradientOf(c, matrix)});
  ExpectSuccess(SumRowGradients(gradients.data(), 1, offsets.data(), c.samples, packed.data(), kStream));
  return packed.Read();
}

using RowGradients = CudaTest;

TEST_F(RowGradients, AreExactInWholeNumbers) {
  for (const GradientCase& c : kGradientCases) {
    const std::vector<int32_t> offsets = Times(RandomLabels(1, c.samples, c.rows), c.shape.width);
    const std::vector<float> gradient = RandomIntegers(2, c.samples * c.shape.stride);
    std::vector<float> expected(c.rows * c.shape.width);
    EmbeddingSumBackward(c.shape, offsets, gradient, expected);
    EXPECT_EQ(PackedGradients(c, offsets, gradient), expected)
        << c.samples << " samples, " << c.rows << " rows of " << c.shape.width;
  }
}

TEST_F(RowGradients, AreNearTheReferenceWithTheSameBitsOnEachCall) {
  for (const GradientCase& c : kGradientCases) {
    const std::vector<int32_t> offsets = Times(RandomLabels(1, c.samples, c.rows), c.shape.width);
    const std::vector<float> gradient = RandomFloats(2, c.samples * c.shape.stride);
    const std::vector<double> expected = ReferenceEmbeddingSumBackward(
        c.shape, offsets, Doubles(gradient), std::vector<double>(c.rows * c.shape.width));
    const std::vector<float> actual = PackedGradients(c, offsets, gradient);
    // A lane adds samples / 32 numbers below 1 and the lanes' sums meet in five additions, each rounded by
    // half an epsilon of what has come together, at most `samples`.
    const auto samples = static_cast<double>(c.samples);
    ExpectNear(actual, expected, (std::ceil(samples / 32) + 5) * samples * FLT_EPSILON / 2);
    EXPECT_EQ(PackedGradients(c, offsets, gradient), actual);
  }
}

TEST_F(RowGradients, OfWhatNamesNoRowGoNowhere) {
  const GradientCase c{.samples = 4, .rows = 2, .shape = {.width = 1, .stride = 1}};
  EXPECT_EQ(PackedGradients(c, {-1, 1, -1, 1}, {NAN, 2, 3, 4}), (std::vector<float>{0, 6}));
}

float FirstSlot(const OptimizerConfig& config) {
  const bool accumulates = config.kind == OptimizerKind::kAdagrad || config.kind == OptimizerKind::kFtrl;
  return accumulates ? config.initial_accumulator : 0;
}

// A table of each kind of optimizer, all updated in one call, with the optimizer of the CPU beside it.
struct TableOnDevice {
  TableOnDevice(const OptimizerConfig& table_config, int64_t table_rows, int64_t table_width)
      : config(table_config),
        rows(table_rows),
        width(table_width),
        optimizer(MakeOptimizer(config, rows * width)),
        expected(RandomFloats(1, rows * width)),
        values(expected),
        first(std::vector<float>(rows * width, FirstSlot(config))),
        second(std::vector<float>(rows * width)),
        sequence(config) {}

  RowUpdate Update(int tensor, int32_t factors, float scale) const {
    return {.kind = config.kind,
            .nesterov = config.nesterov,
            .tensor = tensor,
            .factors = factors,
            .scale = scale,
            .weight_decay = config.weight_decay,
            .momentum = config.momentum,
            .l1 = config.l1,
            .twice_l2 = 2 * config.l2,
            .values = values.data(),
            .first_slot = first.data(),
            .second_slot = second.data()};
  }

  OptimizerConfig config;
  int64_t rows, width;
  std::unique_ptr<Optimizer> optimizer;
  std::vector<float> expected;
  GuardedFloats values, first, second;
  StepFactorSequence sequence;
};

const std::vector<OptimizerConfig>& Configs() {
  static const std::vector<OptimizerConfig> configs = {
      {.kind = OptimizerKind::kFtrl, .learning_rate = 0.2f, .l1 = 0.01f, .l2 = 0.02f},
      {.kind = OptimizerKind::kAdagrad, .learning_rate = 0.05f},
      {.kind = OptimizerKind::kAdagrad, .learning_rate = 0.05f, .weight_decay = 0.01f},
      {.kind = OptimizerKind::kSgd, .learning_rate = 0.5f, .weight_decay = 0.01f},
      {.kind = OptimizerKind::kMomentum,
       .learning_rate = 0.1f,
       .schedule = {.kind = ScheduleKind::kInverse, .gamma = 0.1f, .power = 0.75f}},
      {.kind = OptimizerKind::kMomentum, .learning_rate = 0.1f, .nesterov = true},
      {.kind = OptimizerKind::kAdam, .learning_rate = 0.001f, .weight_decay = 0.01f}};
  return configs;
}

using RowUpdates = CudaTest;

// Several steps with gaps between those that name a row: moments must not move in them.
TEST_F(RowUpdates, GiveTheBitsOfTheCpu) {
  constexpr int64_t kSamples = 70, kWidths[] = {1, 8, 11};
  constexpr float kScale = 1.0f / 3;
  std::vector<TableOnDevice> tables;
  for (size_t t = 0; t < Configs().size(); ++t) {
    tables.emplace_back(Configs()[t], t % 2 == 0 ? 40 : 200, kWidths[t % 3]);
  }
  const int count = static_cast<int>(tables.size());
  std::vector<RowUpdate> updates_values;
  for (int t = 0; t < count; ++t) updates_values.push_back(tables[t].Update(5 + t, t, kScale));
  const GuardedOnDevice<RowUpdate> updates(updates_values);
  const GuardedOnDevice<int32_t> first_bad(std::vector<int32_t>{99});
  for (uint64_t step = 0; step < 5; ++step) {
    std::vector<int32_t> ids;
    std::vector<RowGradient> gradients_values;
    std::vector<StepFactors> factors_values;
    std::vector<std::unique_ptr<GuardedFloats>> matrices;
    for (int t = 0; t < count; ++t) {
      TableOnDevice& table = tables[t];
      const int64_t width = table.width, stride = width + 3;
      const EmbeddingShape shape{.width = width, .stride = stride, .begin = 2};
      const std::vector<int32_t> own = RandomLabels(10 * step + t, kSamples, table.rows);
      ids.insert(ids.end(), own.begin(), own.end());
      const std::vector<float> gradient = RandomIntegers(100 + step, kSamples * stride);
      matrices.push_back(std::make_unique<GuardedFloats>(gradient));
      gradients_values.push_back({.matrix = matrices.back()->data(),
                                  .stride = stride,
                                  .begin = 2,
                                  .width = static_cast<int32_t>(width),
                                  .column = t});
      factors_values.push_back(table.sequence.Next());
      // The same on the CPU, packed in order of first use.
      std::vector<int64_t> rows;
      std::vector<int32_t> offsets;
      for (const int32_t id : own) {
        const auto found = std::find(rows.begin(), rows.end(), id);
        offsets.push_back(static_cast<int32_t>((found - rows.begin()) * width));
        if (found == rows.end()) rows.push_back(id);
      }
      std::vector<float> sums(rows.size() * width);
      EmbeddingSumBackward(shape, offsets, gradient, sums);
      table.optimizer->ApplyRows(width, rows, sums, kScale, table.expected);
    }
    const GuardedOnDevice<int32_t> indices(ids);
    const GuardedOnDevice<RowGradient> gradients(gradients_values);
    const GuardedOnDevice<StepFactors> factors(factors_values);
    ExpectSuccess(UpdateRows(gradients.data(), updates.data(), count, indices.data(), kSamples,
                             factors.data(), first_bad.data(), kStream));
    for (int t = 0; t < count; ++t) {
      ASSERT_EQ(tables[t].values.Read(), tables[t].expected) << "table " << t << ", step " << step;
    }
  }
  for (const TableOnDevice& table : tables) {
    table.first.Read();
    table.second.Read();
  }
  EXPECT_EQ(first_bad.Read()[0], 99);
}

TEST_F(RowUpdates, NameTheFirstTableThatIsNotFinite) {
  for (const float not_finite : {NAN, INFINITY, -INFINITY}) {
    const TableOnDevice a(Configs()[0], 4, 2), b(Configs()[1], 4, 2);
    const GuardedFloats good(std::vector<float>(6, 1)), bad(std::vector<float>{1, 1, 1, 1, 1, not_finite});
    const auto first_bad = [&](const GuardedFloats& of_a, const GuardedFloats& of_b) {
      const GuardedOnDevice<int32_t> indices(std::vector<int32_t>{3, 1, 3, 0, 0, 0}),
          result(std::vector<int32_t>{99});
      const GuardedOnDevice<RowGradient> gradients(
          std::vector<RowGradient>{{.matrix = of_a.data(), .stride = 2, .width = 2, .column = 0},
                                   {.matrix = of_b.data(), .stride = 2, .width = 2, .column = 1}});
      const GuardedOnDevice<RowUpdate> updates(std::vector<RowUpdate>{a.Update(7, 0, 1), b.Update(8, 0, 1)});
      const GuardedOnDevice<StepFactors> factors(
          std::vector<StepFactors>{StepFactorSequence(Configs()[0]).Next()});
      ExpectSuccess(UpdateRows(gradients.data(), updates.data(), 2, indices.data(), 3, factors.data(),
                               result.data(), kStream));
      return result.Read()[0];
    };
    EXPECT_EQ(first_bad(good, good), 99);
    EXPECT_EQ(first_bad(good, bad), 8);
    EXPECT_EQ(first_bad(bad, bad), 7);
  }
}

}  // namespace
}  // namespace muster::cuda
