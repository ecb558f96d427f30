// Workers that are threads of the test, each with a GPU on which its parameters stay.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
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

/// The parameter: how many workers.
class GpuExchange : public cuda::CudaTest, public ::testing::WithParamInterface<int> {
 protected:
  static constexpr int64_t kBatch = 100;  // of all workers
  static constexpr int kSteps = 30;

  /// Before each step of each worker; true: its batch has an infinity.
  std::function<bool(int worker, int64_t step)> before_step = [](int, int64_t) { return false; };

  /// By worker, how its training has ended.
  absl::Status statuses[4];

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

  // Trains `model`, and goes on with the next group when one is over. The losses.
  std::vector<double> Losses(GradientExchange& exchange, Model& model, int worker, int workers) {
    std::vector<double> losses;
    FlatBuffer own(plan_.layout.size());
    const std::span<float> parameters = own.values();
    const std::span<float> gradient = exchange.MakeGradientBuffer(plan_.layout.size());
    BatchBuffer buffer(kBatch, data_.train.feature_count);
    absl::Status status = Cancelled("not begun");
    while (static_cast<int>(losses.size()) < kSteps) {
      if (IsGoneBack(status)) {
        const auto start = exchange.Start(parameters);
        status = start.status();
        if (start.ok()) losses.resize(start->step);
      }
      if (IsGoneBack(status)) continue;
      statuses[worker] = status;
      if (!status.ok()) return losses;
      const auto step = static_cast<int64_t>(losses.size());
      const bool is_spoiled = before_step(worker, step);
      const SampleRange share = BatchSlice(step % 10, kBatch, worker, workers);
      Batch batch = buffer.FillInOrder(data_.train, share);
      const std::vector<float> infinities(batch.features.size(), INFINITY);
      if (is_spoiled) batch.features = infinities;
      const BatchResult local = model.ForwardBackward(parameters, batch, gradient,
                                                      [&](int64_t begin) { exchange.GradientReady(begin); });
      EXPECT_TRUE(model.status().ok()) << model.status();
      const auto result = exchange.Exchange({.samples = static_cast<uint64_t>(local.samples),
                                             .loss_sum = local.loss_sum,
                                             .gradient = gradient,
                                             .rows = no_rows_},
                                            parameters, no_rows_, {});
      status = result.status();
      if (result.ok()) losses.push_back(result->mean_loss);
    }
    EXPECT_EQ(exchange.Finish(), absl::OkStatus()) << "all have the same bits";
    ExpectZerosBetweenTensors(parameters);
    return losses;
  }

  void ExpectZerosBetweenTensors(std::span<const float> parameters) const {
    int64_t behind = 0;
    for (const LayoutTensor& tensor : plan_.layout.tensors()) {
      for (; behind < tensor.offset; ++behind) ASSERT_EQ(parameters[behind], 0) << tensor.spec.name;
      behind = tensor.offset + tensor.size;
    }
  }

  std::vector<double> LossesOfTheCpu() {
    const auto model = MakeCpuModel(plan_, {.largest_batch = kBatch, .seed = 1});
    const auto exchange = MakeLocalExchange(plan_.layout, {}, optimizers_, 1);
    return Losses(**exchange, *model, 0, 1);
  }

  // Of each worker.
  std::vector<std::vector<double>> LossesOfGpus(CollectiveChoice choice) {
    std::vector<std::vector<double>> losses(GetParam());
    std::vector<std::jthread> workers;
    for (int i = 0; i < GetParam(); ++i) {
      workers.emplace_back([&, i] { losses[i] = LossesOfGpu(i, choice); });
    }
    workers.clear();
    return losses;
  }

  void ExpectTheSame(const std::vector<std::vector<double>>& losses, const std::vector<double>& expected) {
    EXPECT_LT(expected.back(), 0.7 * expected.front());
    for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
    for (const std::vector<double>& of_one : losses) {
      EXPECT_EQ(of_one, losses[0]);
      ASSERT_EQ(of_one.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_NEAR(of_one[i], expected[i], 1e-4 * expected[i]) << i;
      }
    }
  }

 private:
  std::vector<double> LossesOfGpu(int worker, CollectiveChoice choice) {
    auto nccl = MakeNccl(worker);
    const auto replica = CudaReplica::Create(worker, plan_.layout, optimizers_);
    if (!nccl.ok() || !replica.ok()) {
      ADD_FAILURE() << nccl.status() << replica.status();
      return {};
    }
    const auto model =
        MakeCudaModel(worker, plan_, {.largest_batch = kBatch, .seed = 1, .replica = replica->get()});
    AllReduceOptions options = Options(worker);
    options.gpus = {.choice = choice, .gpus = *std::move(nccl)};
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

}  // namespace muster
