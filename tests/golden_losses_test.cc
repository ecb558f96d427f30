// The first ten steps of each model give the losses that PyTorch gives (tests/golden/golden_losses.py).
#include <gtest/gtest.h>

#include <cfloat>

#include "kernels/threads.h"
#include "tests/support/golden_losses.h"
#include "trainer/models/cpu_model.h"

namespace muster {
namespace {

// A loss is a mean of 16 functions of logits, which are floats: rounded by half an epsilon of themselves, in
// either direction. What the steps add to that is less (1.3e-8 is the worst there is, with SSE4.1), but where
// a training diverges: there each step rounds the parameters anew, and each time the losses move.
constexpr double kTolerance = FLT_EPSILON / 2;

class GoldenLossesTest : public ::testing::TestWithParam<GoldenCase> {};

TEST_P(GoldenLossesTest, AreThoseOfPyTorch) {
  SetKernelThreads(1);
  const auto model = MakeCpuModel(*PlanModel(FindModel(GetParam().model)->spec),
                                  {.largest_batch = kGoldenBatch, .seed = kGoldenDropoutSeed});
  ExpectGoldenLosses(GetParam(), *model, kTolerance + kGoldenSteps * GetParam().moved);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenLossesTest, ::testing::ValuesIn(GoldenCases()),
                         [](const auto& info) { return info.param.name; });

class CensusGoldenLossesTest : public ::testing::TestWithParam<std::string> {};

TEST_P(CensusGoldenLossesTest, AreThoseOfPyTorch) {
  SetKernelThreads(1);
  const ModelRecipe recipe = *FindModel({.model = "wide_deep", .variant = GetParam()});
  const auto model = MakeCpuModel(*PlanModel(recipe.spec), {.largest_batch = kGoldenBatch});
  ExpectGoldenCensusLosses(GetParam(), *model, kTolerance);
}

INSTANTIATE_TEST_SUITE_P(All, CensusGoldenLossesTest, ::testing::ValuesIn(GoldenCensusVariants()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace muster
