// What models and training on a GPU make of each call of CUDA that fails. With a made-up one, which can be
// told to.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/cuda/fake_cuda.h"
#include "trainer/models/column_cases.h"
#include "trainer/models/cuda_model.h"
#include "trainer/models/cuda_replica.h"
#include "trainer/models/cuda_training.h"

namespace muster {
namespace {

using cuda::FailFakeCuda;
using cuda::FakeCudaWillFail;

constexpr int64_t kBatch = 4;

// One with everything that has code of its own: a convolution with its pooling, dropout, dense layers.
ModelPlan ImagePlan() {
  return *PlanModel(
      {.input = {.height = 6, .width = 6, .channels = 1},
       .layers = {ConvolutionSpec{.name = "conv", .outputs = 2, .kernel = 3},
                  MaxPoolSpec{.name = "pool", .window = 2}, DropoutSpec{.name = "dropout", .rate = 0.5f},
                  DenseSpec{.name = "hidden", .outputs = 5, .activation = Activation::kRelu},
                  DenseSpec{.name = "softmax", .outputs = 3}}});
}

// And one with tables and wide columns.
ModelPlan ColumnsPlan() {
  const std::vector<ColumnsCase> cases = ColumnsCases();
  const auto found =
      std::find_if(cases.begin(), cases.end(), [](const auto& of) { return of.name == "everything"; });
  return *PlanModel(found->spec);
}

// Calls attempt() with call 1 failing, then 2, and so on, until it makes fewer. It returns what its last call
// gave, after which none may be made that fails.
template <typename Attempt>
void WithEachCallFailing(const Attempt& attempt) {
  constexpr int64_t kLeast = 20;  // fewer would be a test of nothing
  for (int64_t call = 1;; ++call) {
    SCOPED_TRACE(::testing::Message() << "call " << call);
    FailFakeCuda(call, cudaErrorMemoryAllocation);
    const absl::Status status = attempt();
    const bool has_failed = !FakeCudaWillFail();
    FailFakeCuda(0);
    ASSERT_EQ(absl::IsResourceExhausted(status), has_failed) << status;
    if (has_failed) continue;
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_GE(call, kLeast);
    return;
  }
}

class CudaFailures : public ::testing::TestWithParam<const char*> {
 protected:
  ~CudaFailures() override { FailFakeCuda(0); }

  bool has_columns() const { return std::string(GetParam()) == "columns"; }

  absl::StatusOr<std::unique_ptr<Model>> MakeModel(Replica* replica = nullptr) const {
    return MakeCudaModel(0, plan_, {.largest_batch = kBatch, .seed = 1, .replica = replica});
  }

  absl::StatusOr<std::unique_ptr<DeviceTraining>> MakeTraining() const {
    return MakeCudaTraining(0, plan_, data_,
                            {.optimizers = optimizers_,
                             .batch_size = kBatch,
                             .evaluation_batch_size = kBatch,
                             .seed = 1,
                             .augment_shift = !has_columns()});
  }

  Dataset MakeData(int64_t size) const {
    RandomStream random(1);
    const auto columns = static_cast<int64_t>(plan_.columns.size());
    Dataset data{.feature_count = plan_.spec.input.size(), .id_count = columns};
    for (int64_t i = 0; i < size; ++i) {
      data.labels.push_back(static_cast<uint8_t>(random.NextBelow(2)));
      for (int64_t j = 0; j < data.feature_count && has_columns(); ++j) {
        data.features.push_back(static_cast<float>(random.NextDouble()));
      }
      for (int64_t j = 0; j < data.feature_count && !has_columns(); ++j) {
        data.bytes.push_back(static_cast<uint8_t>(random.NextBelow(256)));
      }
      for (int64_t j = 0; j < columns; ++j) data.ids.push_back(static_cast<int32_t>(random.NextBelow(4)));
    }
    return data;
  }

  const std::vector<OptimizerConfig> optimizers_ = {{.kind = OptimizerKind::kAdam},
                                                    {.kind = OptimizerKind::kFtrl}};
  const ModelPlan plan_ = has_columns() ? ColumnsPlan() : ImagePlan();
  const TrainTestData data_ = {.train = MakeData(3 * kBatch + 1), .test = MakeData(kBatch + 1)};
};

TEST_P(CudaFailures, OfAModelThatIsMade) {
  WithEachCallFailing([&] { return MakeModel().status(); });
}

// From the call on, the loss says that there is none, and the status why; nothing else is tried.
TEST_P(CudaFailures, OfAModelThatRuns) {
  const ColumnsBatch data(plan_, 1, kBatch);
  const Batch batch = data.batch();
  const std::vector<float> parameters(plan_.layout.size(), 0.25f);
  WithEachCallFailing([&] {
    auto model = MakeModel();
    if (!model.ok()) return model.status();
    std::vector<float> gradient(plan_.layout.size() + data.rows.size());
    for (int time = 0; time < 3; ++time) {
      for (const bool training : {true, false}) {
        const BatchResult result = training ? (*model)->ForwardBackward(parameters, batch, gradient)
                                            : (*model)->Evaluate(parameters, batch);
        EXPECT_EQ(std::isnan(result.loss_sum), !(*model)->status().ok());
      }
    }
    return (*model)->status();
  });
}

TEST_P(CudaFailures, OfAReplica) {
  const ColumnsBatch data(plan_, 1, kBatch);
  WithEachCallFailing([&]() -> absl::Status {
    MUSTER_ASSIGN_OR_RETURN(const auto replica, CudaReplica::Create(0, plan_.layout, optimizers_));
    MUSTER_ASSIGN_OR_RETURN(const auto model, MakeModel(replica.get()));
    std::vector<float> values(plan_.layout.size(), 0.25f);
    MUSTER_RETURN_IF_ERROR(replica->Load(values));
    std::vector<float> gradient(plan_.layout.size() + data.rows.size());
    for (int step = 0; step < 3; ++step) {
      model->ForwardBackward(values, data.batch(), gradient);
      MUSTER_RETURN_IF_ERROR(model->status());
      MUSTER_RETURN_IF_ERROR(replica->Update(replica->gradient(), 1));
    }
    MUSTER_RETURN_IF_ERROR(replica->ReadGradient({0, plan_.layout.size()}, values));
    MUSTER_RETURN_IF_ERROR(replica->Update(values, 1));
    for (int slot = 0; slot < replica->slot_count(); ++slot) {
      MUSTER_RETURN_IF_ERROR(replica->CopySlot(slot, values));
      MUSTER_RETURN_IF_ERROR(replica->SetSlot(slot, values));
    }
    return replica->Store(values);
  });
}

TEST_P(CudaFailures, OfTraining) {
  const std::vector<float> parameters(plan_.layout.size(), 0.25f);
  WithEachCallFailing([&]() -> absl::Status {
    MUSTER_ASSIGN_OR_RETURN(const auto training, MakeTraining());
    MUSTER_RETURN_IF_ERROR(training->Start(parameters));
    for (const int64_t steps : {1, 4, 3}) {
      MUSTER_ASSIGN_OR_RETURN(const std::vector<DeviceStep> results, training->Run(steps));
      EXPECT_EQ(static_cast<int64_t>(results.size()), steps);
      MUSTER_RETURN_IF_ERROR(training->EvaluateTestSet().status());
    }
    std::vector<float> trained(parameters.size());
    MUSTER_RETURN_IF_ERROR(training->ReadParameters(trained));
    return training->ReadTables().status();
  });
}

INSTANTIATE_TEST_SUITE_P(All, CudaFailures, ::testing::Values("images", "columns"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace muster
