// The module as the trainer loads it, with or without a GPU.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "tests/support/free_port.h"
#include "trainer/allreduce_exchange.h"
#include "trainer/cuda_module.h"
#include "trainer/data/synthetic_digits.h"
#include "trainer/flat_buffer.h"
#include "trainer/models/cpu_model.h"
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

// Trains 50 steps by allreduce, alone, with a model and a way to sum; `replica` as AllReduceOptions has it.
std::vector<double> LossesByAllReduce(const ModelPlan& plan, const OptimizerConfig& optimizer,
                                      const Dataset& data, Model& model, const GpuPreference& gpus,
                                      Replica* replica) {
  const ClusterSpec cluster{.workers = {FreeAddress()}};
  const auto exchange = MakeAllReduceExchange(
      plan.layout, std::vector{optimizer}, 1,
      {.cluster = cluster, .task = {Role::kWorker, 0}, .gpus = gpus, .replica = replica});
  std::vector<double> losses;
  if (!exchange.ok()) {
    ADD_FAILURE() << exchange.status();
    return losses;
  }
  FlatBuffer buffer_of_parameters(plan.layout.size());
  const std::span<float> parameters = buffer_of_parameters.values();
  const auto start = (*exchange)->Start(parameters);
  EXPECT_TRUE(start.ok()) << start.status();
  const std::span<float> gradient = (*exchange)->MakeGradientBuffer(plan.layout.size());
  BatchBuffer buffer(100, data.feature_count);
  const RowIndex no_rows;
  for (int64_t step = 0; start.ok() && step < 50; ++step) {
    const Batch batch = buffer.FillInOrder(data, {step % 10 * 100, step % 10 * 100 + 100});
    const BatchResult local = model.ForwardBackward(
        parameters, batch, gradient, [&](int64_t begin) { (*exchange)->GradientReady(begin); });
    const auto result = (*exchange)->Exchange({.samples = static_cast<uint64_t>(local.samples),
                                               .loss_sum = local.loss_sum,
                                               .gradient = gradient,
                                               .rows = no_rows},
                                              parameters, no_rows, {});
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) break;
    losses.push_back(result->mean_loss);
  }
  EXPECT_EQ((*exchange)->Finish(), absl::OkStatus());
  return losses;
}

// Products of floats as such, without TF32: what differs is the order of sums.
TEST(CudaModuleFile, OneRankByNcclHasTheLossesOfTheCpu) {
  auto device = OpenCudaDevice(CudaModuleFolder(), 0);
  if (!device.ok()) GTEST_SKIP() << device.status().message();
  auto nccl = (*device)->MakeCollectives();
  if (!nccl.ok()) GTEST_SKIP() << nccl.status().message();
  const TrainTestData data = MakeSyntheticMnist(2, 1000, 100);
  const ModelRecipe recipe = *FindModel({.model = "mnist_mlp", .hidden = {50}});
  const ModelPlan plan = *PlanModel(recipe.spec);
  const OptimizerConfig& optimizer = recipe.defaults.optimizer;
  const auto replica = (*device)->MakeReplica(plan.layout, {&optimizer, 1});
  ASSERT_TRUE(replica.ok()) << replica.status();
  const auto on_gpu = (*device)->MakeModel(
      plan, {.largest_batch = 100, .seed = 1, .math = cuda::Math::kFloat32, .replica = replica->get()});
  ASSERT_TRUE(on_gpu.ok()) << on_gpu.status();
  const auto on_cpu = MakeCpuModel(plan, {.largest_batch = 100, .seed = 1});
  const std::vector<double> expected = LossesByAllReduce(plan, optimizer, data.train, *on_cpu, {}, nullptr);
  const std::vector<double> losses =
      LossesByAllReduce(plan, optimizer, data.train, **on_gpu,
                        {.choice = CollectiveChoice::kNccl, .gpus = *std::move(nccl)}, replica->get());
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], expected[i], 1e-4 * expected[i]) << i;
}

}  // namespace
}  // namespace muster
