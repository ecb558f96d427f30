// Workers whose parameters stay on their GPUs, which add up gradients there by NCCL, have the losses of one
// process on the CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <thread>
#include <vector>

#include "collective/nccl.h"
#include "kernels/cuda/cuda_testing.h"
#include "tests/support/free_port.h"
#include "trainer/allreduce_exchange.h"
#include "trainer/data/sample_order.h"
#include "trainer/data/synthetic_digits.h"
#include "trainer/flat_buffer.h"
#include "trainer/models/cpu_model.h"
#include "trainer/models/cuda_model.h"
#include "trainer/models/cuda_replica.h"
#include "trainer/models/model.h"

namespace muster {
namespace {

constexpr int64_t kBatch = 100;  // of all workers
constexpr int kSteps = 30;

class GpuExchangeTest : public cuda::CudaTest, public ::testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    int count = 0;
    if (cudaGetDeviceCount(&count) == cudaSuccess && count < GetParam()) {
      GTEST_SKIP() << "there are not " << GetParam() << " GPUs";
    }
    for (int i = 0; i < GetParam(); ++i) cluster_.workers.push_back(FreeAddress());
  }

  AllReduceOptions Options(int worker) const {
    return {.cluster = cluster_,
            .task = {Role::kWorker, worker},
            .bucket_floats = 16 << 10,
            .connect_timeout = std::chrono::seconds(60),
            .operation_timeout = std::chrono::seconds(60)};
  }

  // Trains `model`, and returns the losses and, last, the checksum of the parameters.
  std::vector<double> Losses(GradientExchange& exchange, Model& model, int worker, int workers) {
    std::vector<double> losses;
    FlatBuffer own(plan_.layout.size());
    const std::span<float> parameters = own.values();
    const std::span<float> gradient = exchange.MakeGradientBuffer(plan_.layout.size());
    const auto start = exchange.Start(parameters);
    EXPECT_TRUE(start.ok()) << start.status();
    BatchBuffer buffer(kBatch, data_.train.feature_count);
    for (int64_t step = 0; start.ok() && step < kSteps; ++step) {
      const SampleRange share = BatchSlice(step % 10, kBatch, worker, workers);
      const Batch batch = buffer.FillInOrder(data_.train, share);
      const BatchResult local = model.ForwardBackward(parameters, batch, gradient,
                                                      [&](int64_t begin) { exchange.GradientReady(begin); });
      EXPECT_TRUE(model.status().ok()) << model.status();
      const auto result = exchange.Exchange({.samples = static_cast<uint64_t>(local.samples),
                                             .loss_sum = local.loss_sum,
                                             .gradient = gradient,
                                             .rows = no_rows_},
                                            parameters, no_rows_, {});
      EXPECT_TRUE(result.ok()) << result.status();
      if (!result.ok()) return losses;
      losses.push_back(result->mean_loss);
    }
    EXPECT_EQ(exchange.Finish(), absl::OkStatus()) << "all have the same bits";
    return losses;
  }

  std::vector<double> LossesOfTheCpu() {
    const auto model = MakeCpuModel(plan_, {.largest_batch = kBatch, .seed = 1});
    const auto exchange = MakeLocalExchange(plan_.layout, {}, optimizers_, 1);
    return Losses(**exchange, *model, 0, 1);
  }

  std::vector<double> LossesOfGpu(int worker) {
    auto nccl = MakeNccl(worker);
    const auto replica = CudaReplica::Create(worker, plan_.layout, optimizers_);
    if (!nccl.ok() || !replica.ok()) {
      ADD_FAILURE() << nccl.status() << replica.status();
      return {};
    }
    const auto model =
        MakeCudaModel(worker, plan_, {.largest_batch = kBatch, .seed = 1, .replica = replica->get()});
    AllReduceOptions options = Options(worker);
    options.gpus = {.choice = CollectiveChoice::kNccl, .gpus = *std::move(nccl)};
    options.replica = replica->get();
    const auto exchange = MakeAllReduceExchange(plan_.layout, optimizers_, 1, options);
    if (!model.ok() || !exchange.ok()) {
      ADD_FAILURE() << model.status() << exchange.status();
      return {};
    }
    return Losses(**exchange, **model, worker, GetParam());
  }

  const TrainTestData data_ = MakeSyntheticMnist(2, 1000, 100);
  const ModelPlan plan_ = *PlanModel(FindModel({.model = "mnist_mlp", .hidden = {300, 300}})->spec);
  const std::vector<OptimizerConfig> optimizers_ = {{.kind = OptimizerKind::kAdam, .learning_rate = 0.001f}};
  const RowIndex no_rows_;
  ClusterSpec cluster_;
};

TEST_P(GpuExchangeTest, HasTheLossesOfTheCpu) {
  const std::vector<double> expected = LossesOfTheCpu();
  std::vector<std::jthread> others;
  std::vector<std::vector<double>> losses(GetParam());
  for (int i = 1; i < GetParam(); ++i) others.emplace_back([&, i] { losses[i] = LossesOfGpu(i); });
  losses[0] = LossesOfGpu(0);
  others.clear();
  EXPECT_LT(expected.back(), 0.7 * expected.front());
  for (const std::vector<double>& of_one : losses) {
    EXPECT_EQ(of_one, losses[0]);
    ASSERT_EQ(of_one.size(), expected.size());
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(of_one[i], expected[i], 1e-4 * expected[i]) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Workers, GpuExchangeTest, ::testing::Values(1, 2, 4));

}  // namespace
}  // namespace muster
