// On a GPU the first ten steps of each model give the losses that PyTorch gives.
#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>

#include "kernels/cuda/cuda_testing.h"
#include "tests/support/golden_losses.h"
#include "trainer/models/cuda_model.h"

namespace muster {
namespace {

// Each logit is a sum of up to 3136 products, each rounded by half an epsilon at most, which adds up as a
// random walk does (Higham and Mary, "A new approach to probabilistic rounding error analysis", 2019); the
// steps add theirs.
const double kTolerance = kGoldenSteps * std::sqrt(3136) * FLT_EPSILON / 2;

class CudaGoldenLossesTest : public cuda::CudaTest, public ::testing::WithParamInterface<GoldenCase> {};

TEST_P(CudaGoldenLossesTest, AreThoseOfPyTorch) {
  const auto model = MakeCudaModel(0, *PlanModel(FindModel(GetParam().model)->spec),
                                   {.largest_batch = kGoldenBatch, .seed = kGoldenDropoutSeed});
  ASSERT_TRUE(model.ok()) << model.status();
  ExpectGoldenLosses(GetParam(), **model, kTolerance);
}

INSTANTIATE_TEST_SUITE_P(All, CudaGoldenLossesTest, ::testing::ValuesIn(GoldenCases()),
                         [](const auto& info) { return info.param.name; });

class CudaCensusGoldenLossesTest : public cuda::CudaTest,
                                   public ::testing::WithParamInterface<std::string> {};

TEST_P(CudaCensusGoldenLossesTest, AreThoseOfPyTorch) {
  const ModelRecipe recipe = *FindModel({.model = "wide_deep", .variant = GetParam()});
  const auto model = MakeCudaModel(0, *PlanModel(recipe.spec), {.largest_batch = kGoldenBatch});
  ASSERT_TRUE(model.ok()) << model.status();
  ExpectGoldenCensusLosses(GetParam(), **model, kTolerance);
}

INSTANTIATE_TEST_SUITE_P(All, CudaCensusGoldenLossesTest, ::testing::ValuesIn(GoldenCensusVariants()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace muster
