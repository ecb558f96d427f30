// Models with id columns, on small, odd shapes: the reference against differences of its loss, the model in
// float against the reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <ostream>

#include "kernels/dense.h"
#include "trainer/models/cpu_model.h"
#include "trainer/models/exact_data.h"
#include "trainer/models/gradient_check.h"
#include "trainer/models/reference_model.h"

namespace muster {

// As in dense_test.cc: of a gradient of logits up to 20 in float, and of one sample's loss.
constexpr double kLossError = 24 * FLT_EPSILON;

struct ColumnsCase {
  std::string name;
  ModelSpec spec;
};

void PrintTo(const ColumnsCase& columns_case, std::ostream* out) { *out << columns_case.name; }

namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint64_t kSeed = 11;
constexpr int64_t kSamples = 9;

int64_t Buckets(const IdColumnSpec& column) {
  return std::visit([](const auto& spec) { return spec.buckets; }, column);
}

class ColumnsTest : public ::testing::TestWithParam<ColumnsCase> {
 protected:
  // A batch with its rows; the first column has one id for all samples.
  struct Data {
    Data(const ModelPlan& plan, uint64_t seed, int64_t samples)
        : exact(seed, samples, plan.spec.input.size(), plan.outputs == 1 ? 2 : plan.outputs),
          rows(plan.tables, plan.TableColumns(), samples) {
      RandomStream random(seed);
      for (int64_t s = 0; s < samples; ++s) {
        for (size_t c = 0; c < plan.columns.size(); ++c) {
          const int64_t buckets = Buckets(plan.columns[c].spec);
          ids.push_back(static_cast<int32_t>(c == 0 ? buckets - 1 : random.NextBelow(buckets)));
        }
      }
      rows.Build(ids, static_cast<int64_t>(plan.columns.size()), samples);
      for (int64_t i = 0; i < rows.size(); ++i) {
        values.push_back(static_cast<float>(random.NextBelow(3)) / 2 - 0.5f);
      }
    }
    Batch batch() const {
      Batch batch = exact.batch();
      batch.ids = ids;
      batch.rows = &rows;
      batch.row_values = values;
      return batch;
    }
    const ExactBatch exact;
    std::vector<int32_t> ids;
    RowIndex rows;
    std::vector<float> values;
  };

  // The parameters with the batch's rows behind them, as ReferenceModel takes them.
  std::vector<double> All(std::span<const float> parameters, const Data& data) const {
    std::vector<double> all(parameters.begin(), parameters.end());
    all.insert(all.end(), data.values.begin(), data.values.end());
    return all;
  }

  const ModelPlan plan_ = *PlanModel(GetParam().spec);
  const ReferenceModel reference_{plan_, kSeed};
};

TEST_P(ColumnsTest, ReferenceAgreesWithDifferencesOfItsLoss) {
  const Data data(plan_, 1, 4);
  ExpectGradientOfLoss(reference_, plan_.layout.size() + data.rows.size(), data.batch());
}

TEST_P(ColumnsTest, CpuModelMatchesTheReference) {
  const auto model = MakeCpuModel(plan_, {.largest_batch = kSamples, .seed = kSeed});
  const std::vector<float> parameters = ExactParameters(plan_.layout, 3);
  for (const int64_t samples : {kSamples, int64_t{1}, int64_t{0}}) {
    const Data data(plan_, 4, samples);
    std::vector<float> gradient(plan_.layout.size() + data.rows.size(), NAN);
    const BatchResult result = model->ForwardBackward(parameters, data.batch(), gradient);
    const std::vector<double> all = All(parameters, data);
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
  Data data(plan_, 4, kSamples);
  data.values[0] = NAN;
  std::vector<float> gradient(plan_.layout.size() + data.rows.size());
  const BatchResult result = model->ForwardBackward(ExactParameters(plan_.layout, 3), data.batch(), gradient);
  EXPECT_TRUE(std::isnan(result.loss_sum));
}

std::vector<ColumnsCase> AllCases() {
  const WideColumnSpec wide{.name = "a", .buckets = 7}, crossed{.name = "b", .buckets = 1000};
  const EmbeddingColumnSpec narrow{.name = "c", .buckets = 5, .width = 2},
      usual{.name = "a", .buckets = 30, .width = 8};
  const OneHotColumnSpec one_hot{.name = "d", .buckets = 4};
  const auto sigmoid = LossKind::kSigmoidCrossEntropy;
  const std::vector<LayerSpec> layers = {
      DenseSpec{.name = "hidden", .outputs = 6, .activation = Activation::kRelu},
      DenseSpec{.name = "logit", .outputs = 1}};
  const std::vector<LayerSpec> classes = {DenseSpec{.name = "softmax", .outputs = 3}};
  const SampleShape three{.channels = 3}, none{.channels = 0};
  return {
      {"wide_only", {.input = none, .columns = {wide, crossed}, .loss = sigmoid}},
      {"wide_beside_layers", {.input = three, .columns = {wide, crossed}, .layers = layers, .loss = sigmoid}},
      {"embeddings", {.input = three, .columns = {narrow, usual}, .layers = layers, .loss = sigmoid}},
      {"embeddings_only", {.input = none, .columns = {usual}, .layers = layers, .loss = sigmoid}},
      {"everything",
       {.input = three,
        .columns = {wide, narrow, crossed, one_hot, usual},
        .layers = layers,
        .loss = sigmoid,
        .wide_optimizer_group = 1}},
      {"three_classes",
       {.input = three,
        .columns = {wide, one_hot, crossed, narrow},
        .layers = classes,
        .wide_optimizer_group = 1}}};
}

INSTANTIATE_TEST_SUITE_P(All, ColumnsTest, ::testing::ValuesIn(AllCases()),
                         [](const auto& info) { return info.param.name; });

TEST(ColumnsSpec, TablesAndInputsAreWhatFollows) {
  const ModelPlan plan = *PlanModel(AllCases()[4].spec);
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
