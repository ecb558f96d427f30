// The first ten steps of each model give the losses that PyTorch gives (tests/golden/golden_losses.py).
#include <gtest/gtest.h>

#include "kernels/threads.h"
#include "tests/support/golden_losses.h"
#include "trainer/models/cpu_model.h"

namespace muster {
namespace {

class GoldenLossesTest : public ::testing::TestWithParam<GoldenCase> {};

TEST_P(GoldenLossesTest, AreThoseOfPyTorch) {
  SetKernelThreads(1);
  const auto model = MakeCpuModel(*PlanModel(FindModel(GetParam().model)->spec),
                                  {.largest_batch = kGoldenBatch, .seed = kGoldenDropoutSeed});
  ExpectGoldenLosses(GetParam(), *model);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenLossesTest, ::testing::ValuesIn(GoldenCases()),
                         [](const auto& info) { return info.param.name; });

class CensusGoldenLossesTest : public ::testing::TestWithParam<std::string> {};

TEST_P(CensusGoldenLossesTest, AreThoseOfPyTorch) {
  SetKernelThreads(1);
  const ModelRecipe recipe = *FindModel({.model = "wide_deep", .variant = GetParam()});
  const auto model = MakeCpuModel(*PlanModel(recipe.spec), {.largest_batch = kGoldenBatch});
  ExpectGoldenCensusLosses(GetParam(), *model);
}

INSTANTIATE_TEST_SUITE_P(All, CensusGoldenLossesTest, ::testing::ValuesIn(GoldenCensusVariants()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace muster
