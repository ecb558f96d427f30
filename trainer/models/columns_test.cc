// Models with id columns, on small, odd shapes: the reference against differences of its loss, the model in
// float against the reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "kernels/dense.h"
#include "trainer/models/column_cases.h"
#include "trainer/models/cpu_model.h"
#include "trainer/models/exact_data.h"
#include "trainer/models/gradient_check.h"
#include "trainer/models/reference_model.h"

namespace muster {

// As in dense_test.cc: of a gradient of logits up to 20 in float, and of one sample's loss.
constexpr double kLossError = 24 * FLT_EPSILON;

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kSeed = 11;
constexpr int64_t kSamples = 9;

class ColumnsTest : public ::testing::TestWithParam<ColumnsCase> {
 protected:
  const ModelPlan plan_ = *PlanModel(GetParam().spec);
  const ReferenceModel reference_{plan_, kSeed};
};

TEST_P(ColumnsTest, ReferenceAgreesWithDifferencesOfItsLoss) {
  const ColumnsBatch data(plan_, 1, 4);
  ExpectGradientOfLoss(reference_, plan_.layout.size() + data.rows.size(), data.batch());
}

TEST_P(ColumnsTest, CpuModelMatchesTheReference) {
  const auto model = MakeCpuModel(plan_, {.largest_batch = kSamples, .seed = kSeed});
  const std::vector<float> parameters = ExactParameters(plan_.layout, 3);
  for (const int64_t samples : {kSamples, int64_t{1}, int64_t{0}}) {
    const ColumnsBatch data(plan_, 4, samples);
    std::vector<float> gradient(plan_.layout.size() + data.rows.size(), NAN);
    const BatchResult result = model->ForwardBackward(parameters, data.batch(), gradient);
    const std::vector<double> all = data.BehindParameters(parameters);
    const ReferenceResult expected = reference_.ForwardBackward(all, data.batch());
    const std::vector<double> tolerance = reference_.GradientTolerance(all, data.batch(), kLossError);
    EXPECT_NEAR(result.loss_sum, expected.loss_sum, samples * kLossError);
    EXPECT_EQ(result.samples, samples);
    for (size_t i = 0; i < gradient.size(); ++i) {
      ASSERT_NEAR(gradient[i], expected.gradient[i], tolerance[i]) << i;
    }
    EXPECT_EQ(model->logits().size(), static_cast<size_t>(samples * plan_.outputs));
    EXPECT_NEAR(model->Evaluate(parameters, data.batch()).loss_sum,
                reference_.EvaluationLoss(all, data.batch()), samples * kLossError);
  }
}

TEST_P(ColumnsTest, NanInARowReachesTheLoss) {
  const auto model = MakeCpuModel(plan_, {.largest_batch = kSamples, .seed = kSeed});
  ColumnsBatch data(plan_, 4, kSamples);
  data.values[0] = NAN;
  std::vector<float> gradient(plan_.layout.size() + data.rows.size());
  const BatchResult result = model->ForwardBackward(ExactParameters(plan_.layout, 3), data.batch(), gradient);
  EXPECT_TRUE(std::isnan(result.loss_sum));
}

INSTANTIATE_TEST_SUITE_P(All, ColumnsTest, ::testing::ValuesIn(ColumnsCases()),
                         [](const auto& info) { return info.param.name; });

TEST(ColumnsSpec, TablesAndInputsAreWhatFollows) {
  const ModelPlan plan = *PlanModel(ColumnsCases()[4].spec);
  EXPECT_THAT(plan.tables,
              ElementsAre(TableSpec{.name = "wide/a", .rows = 7, .width = 1, .optimizer_group = 1},
                          TableSpec{.name = "deep/c",
                                    .rows = 5,
                                    .width = 2,
                                    .initializer = Initializer::kTruncatedNormal,
                                    .scale = 1 / std::sqrt(2.0f)},
                          TableSpec{.name = "wide/b", .rows = 1000, .width = 1, .optimizer_group = 1},
                          TableSpec{.name = "deep/a",
                                    .rows = 30,
                                    .width = 8,
                                    .initializer = Initializer::kTruncatedNormal,
                                    .scale = 1 / std::sqrt(8.0f)}));
  EXPECT_THAT(plan.TableColumns(), ElementsAre(0, 1, 2, 4));
  EXPECT_EQ(plan.layers[0].input.size(), 3 + 2 + 4 + 8);
  EXPECT_EQ(plan.columns[3].input_begin, 5);
  EXPECT_EQ(plan.columns[4].input_begin, 9);
  EXPECT_EQ(plan.wide_bias->spec.name, "wide/bias");
  EXPECT_EQ(plan.wide_bias->spec.optimizer_group, 1);
  EXPECT_EQ(plan.outputs, 1);
}

TEST(ColumnsSpec, NamesTheColumnThatIsWrong) {
  const auto error = [](std::vector<IdColumnSpec> columns) {
    return std::string(
        PlanModel(
            {.input = {.channels = 1}, .columns = columns, .layers = {DenseSpec{.name = "x", .outputs = 1}}})
            .status()
            .message());
  };
  EXPECT_THAT(error({WideColumnSpec{.name = "w", .buckets = 0}}), HasSubstr("wide/w"));
  EXPECT_THAT(error({EmbeddingColumnSpec{.name = "e", .buckets = 3, .width = 0}}), HasSubstr("deep/e"));
  EXPECT_THAT(error({OneHotColumnSpec{.name = "o", .buckets = 0}}), HasSubstr("'o'"));
  const WideColumnSpec twice{.name = "w", .buckets = 1};
  EXPECT_EQ(error({twice, twice}), "two tables are named 'wide/w'");
  EXPECT_EQ(error({WideColumnSpec{.name = "bias", .buckets = 1}}),
            "a tensor and a table are named 'wide/bias'");
}

}  // namespace
}  // namespace muster
