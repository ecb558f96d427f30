// The module as the trainer loads it, with or without a GPU.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "trainer/cuda_module.h"
#include "trainer/data/synthetic_digits.h"
#include "trainer/models/model.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

bool HasDriver() { return ::dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL) != nullptr; }

std::string OpeningFails(const std::filesystem::path& folder) {
  const absl::Status status = OpenCudaDevice(folder, 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  return std::string(status.message());
}

// Not through OpenCudaDevice, which does not come so far without a driver.
const CudaModule* LoadedModule() {
  void* const library = ::dlopen((CudaModuleFolder() / kCudaModuleFile).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    ADD_FAILURE() << ::dlerror();
    return nullptr;
  }
  const auto function = reinterpret_cast<CudaModuleFunction>(::dlsym(library, kCudaModuleSymbol));
  EXPECT_NE(function, nullptr);
  return function == nullptr ? nullptr : function();
}

TEST(CudaModuleFile, IsOfThisBuildAndSaysWhatIsMissing) {
  const CudaModule* const module = LoadedModule();
  ASSERT_NE(module, nullptr);
  EXPECT_EQ(module->abi, kCudaModuleAbi);
  EXPECT_STREQ(module->version, MUSTER_VERSION);
  const auto device = module->open(0);
  if (device.ok()) {
    EXPECT_THAT((*device)->name(), StartsWith("cuda:0 ("));
    const absl::Status beyond = module->open(1000).status();
    EXPECT_TRUE(absl::IsInvalidArgument(beyond)) << beyond;
    EXPECT_THAT(std::string(beyond.message()), StartsWith("there is no GPU 1000 here: "));
  } else {
    EXPECT_TRUE(absl::IsFailedPrecondition(device.status())) << device.status();
    EXPECT_THAT(std::string(device.status().message()),
                ::testing::AnyOf(HasSubstr("NVIDIA driver"), HasSubstr("compute capability")));
  }
}

TEST(CudaModuleFile, WithoutADriverNothingElseIsLookedAt) {
  if (HasDriver()) GTEST_SKIP() << "this host has an NVIDIA driver";
  EXPECT_THAT(OpeningFails("/nowhere"), StartsWith("no NVIDIA driver on this host (libcuda.so.1: "));
}

TEST(CudaModuleFile, WhatIsNoModuleIsNamed) {
  if (!HasDriver()) GTEST_SKIP() << "this host has no NVIDIA driver";
  EXPECT_EQ(OpeningFails("/nowhere"),
            "this program was built without CUDA (there is no /nowhere/libmuster_cuda.so)");
  const TemporaryDirectory folder;
  std::ofstream(folder.path() / kCudaModuleFile) << "no library";
  EXPECT_THAT(OpeningFails(folder.path()), StartsWith("the CUDA module cannot be loaded: "));
}

// All the way: what the other tests of CUDA link, this one loads.
TEST(CudaModuleFile, TrainsAModel) {
  auto device = OpenCudaDevice(CudaModuleFolder(), 0);
  if (!device.ok()) GTEST_SKIP() << device.status().message();
  const TrainTestData data = MakeSyntheticMnist(2, 1000, 100);
  const ModelRecipe recipe = *FindModel({.model = "mnist_softmax"});
  const ModelPlan plan = *PlanModel(recipe.spec);
  std::vector<float> parameters(plan.layout.size());
  const auto training = (*device)->MakeTraining(
      plan, data,
      {.optimizers = {recipe.defaults.optimizer}, .batch_size = 100, .evaluation_batch_size = 100});
  ASSERT_TRUE(training.ok()) << training.status();
  ASSERT_TRUE((*training)->Start(parameters).ok());
  const auto steps = (*training)->Run(60);
  ASSERT_TRUE(steps.ok()) << steps.status();
  EXPECT_LT(steps->back().loss_sum, 0.5 * steps->front().loss_sum);
  ASSERT_TRUE((*training)->ReadParameters(parameters).ok());
  const auto model = (*device)->MakeModel(plan, {.largest_batch = 100});
  ASSERT_TRUE(model.ok()) << model.status();
  const auto test = (*training)->EvaluateTestSet();
  ASSERT_TRUE(test.ok()) << test.status();
  BatchBuffer buffer(100, data.test.feature_count);
  EXPECT_DOUBLE_EQ((*model)->Evaluate(parameters, buffer.FillInOrder(data.test, {0, 100})).loss_sum,
                   test->result.loss_sum);
}

}  // namespace
}  // namespace muster
