// Each kind of layer on small, odd shapes: the reference against differences of its loss, the model in float
// against the reference.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "kernels/dense.h"
#include "kernels/threads.h"
#include "trainer/models/cpu_model.h"
#include "trainer/models/exact_data.h"
#include "trainer/models/gradient_check.h"
#include "trainer/models/layer_cases.h"
#include "trainer/models/reference_model.h"

namespace muster {

// As in dense_test.cc: of a gradient of logits up to 20 in float, and of one sample's loss.
constexpr double kLossError = 24 * FLT_EPSILON;

namespace {

constexpr uint64_t kSeed = 11;

class LayersTest : public ::testing::TestWithParam<LayersCase> {
 protected:
  const ModelPlan plan_ = PlanOf(GetParam());
  const ReferenceModel reference_{plan_, kSeed};
};

TEST_P(LayersTest, ReferenceAgreesWithDifferencesOfItsLoss) {
  const ExactBatch data(1, 3, plan_.spec.input.size(), kLayersClasses);
  ExpectGradientOfLoss(reference_, plan_.layout.size(), data.batch());
}

TEST_P(LayersTest, CpuModelMatchesTheReference) {
  const auto model = MakeCpuModel(plan_, {.largest_batch = 3, .seed = kSeed});
  const std::vector<float> parameters = ExactParameters(plan_.layout, 3);
  const std::vector<double> exact(parameters.begin(), parameters.end());
  for (const int threads : {1, 2}) {
    SetKernelThreads(threads);
    for (const int64_t samples : {3, 1}) {
      const ExactBatch data(4, samples, plan_.spec.input.size(), kLayersClasses);
      std::vector<float> gradient(plan_.layout.size(), NAN);
      const BatchResult result = model->ForwardBackward(parameters, data.batch(), gradient);
      const ReferenceResult expected = reference_.ForwardBackward(exact, data.batch());
      const std::vector<double> tolerance = reference_.GradientTolerance(exact, data.batch(), kLossError);
      EXPECT_NEAR(result.loss_sum, expected.loss_sum, samples * kLossError);
      for (size_t i = 0; i < gradient.size(); ++i) {
        ASSERT_NEAR(gradient[i], expected.gradient[i], tolerance[i]) << i;
      }
      EXPECT_NEAR(model->Evaluate(parameters, data.batch()).loss_sum,
                  reference_.EvaluationLoss(exact, data.batch()), samples * kLossError);
    }
  }
  SetKernelThreads(1);
}

INSTANTIATE_TEST_SUITE_P(All, LayersTest, ::testing::ValuesIn(LayersCases()),
                         [](const auto& info) { return info.param.name; });

TEST(ModelSpec, LayersHaveTheShapesThatFollow) {
  const ModelPlan plan = *PlanModel(
      {.input = {.height = 7, .width = 5, .channels = 3},
       .layers = {ConvolutionSpec{.name = "a", .outputs = 4, .kernel = 3, .padding = Padding::kSame},
                  MaxPoolSpec{.name = "b", .window = 2},
                  ConvolutionSpec{.name = "c", .outputs = 6, .kernel = 2, .initial_bias = 0.5f},
                  DropoutSpec{.name = "d", .rate = 0.5f}, DenseSpec{.name = "e", .outputs = 2}}});
  std::vector<SampleShape> outputs;
  for (const LayerPlan& layer : plan.layers) outputs.push_back(layer.output);
  EXPECT_THAT(outputs,
              ::testing::ElementsAre(SampleShape{7, 5, 4}, SampleShape{3, 2, 4}, SampleShape{2, 1, 6},
                                     SampleShape{2, 1, 6}, SampleShape{1, 1, 2}));
  EXPECT_THAT(plan.layers[2].tensors[0].spec.shape, ::testing::ElementsAre(2, 2, 4, 6));
  EXPECT_EQ(plan.layout.parameter_count(), 3 * 3 * 3 * 4 + 4 + 2 * 2 * 4 * 6 + 6 + 12 * 2 + 2);
  std::vector<float> initial(plan.layout.size());
  plan.layout.Initialize(1, {0, plan.layout.size()}, initial);
  EXPECT_EQ(initial[plan.layers[2].tensors[1].offset + 5], 0.5f);
  EXPECT_EQ(initial[plan.layers[4].tensors[1].offset], 0);
}

TEST(ModelSpec, RefusesLayersThatDoNotFit) {
  const auto error = [](const LayerSpec& layer) {
    const absl::Status status =
        PlanModel({.input = {.height = 7, .width = 5, .channels = 3}, .layers = {layer}}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(error(ConvolutionSpec{.name = "conv", .outputs = 2, .kernel = 6}),
            "conv: a kernel of size 6 on an image of 7 x 5");
  EXPECT_EQ(error(ConvolutionSpec{.name = "conv", .outputs = 2}), "conv: a kernel of size 0; at least 1");
  EXPECT_EQ(error(ConvolutionSpec{.name = "conv", .kernel = 2}), "conv: a layer of size 0; at least 1");
  EXPECT_EQ(error(MaxPoolSpec{.name = "pool", .window = 6}), "pool: a window of size 6 on an image of 7 x 5");
  EXPECT_EQ(error(MaxPoolSpec{.name = "pool", .window = 16}), "pool: a window of size 16; from 1 to 15");
  EXPECT_EQ(error(DropoutSpec{.name = "drop", .rate = 1}), "drop: a rate of 1; at least 0 and below 1");
  EXPECT_EQ(error(DropoutSpec{.name = "drop", .rate = NAN}), "drop: a rate of nan; at least 0 and below 1");
}

}  // namespace
}  // namespace muster
