// A replica on a GPU gives what LayoutOptimizer and a model without one give.
#include "trainer/models/cuda_replica.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/cuda/cuda_testing.h"
#include "kernels/layout_optimizer.h"
#include "trainer/models/cuda_model.h"
#include "trainer/models/exact_data.h"
#include "trainer/models/model.h"

namespace muster {
namespace {

using cuda::CudaTest;

constexpr int64_t kBatch = 16;
constexpr uint64_t kSeed = 5;

std::unique_ptr<CudaReplica> MustMake(const ParameterLayout& layout,
                                      const std::vector<OptimizerConfig>& optimizers) {
  auto replica = CudaReplica::Create(0, layout, optimizers);
  MUSTER_CHECK(replica.ok(), replica.status().ToString());
  return *std::move(replica);
}

// Of step `step`; padding zero.
std::vector<float> SomeGradient(const ParameterLayout& layout, uint64_t step) {
  std::vector<float> gradient(layout.size());
  RandomStream random(step);
  for (const LayoutTensor& tensor : layout.tensors()) {
    for (int64_t i = 0; i < tensor.size; ++i) {
      gradient[tensor.offset + i] = static_cast<float>(random.NextDouble() - 0.5);
    }
  }
  return gradient;
}

// Two groups, the second between tensors of the first, and padding.
class CudaReplicaTest : public CudaTest, public ::testing::WithParamInterface<OptimizerConfig> {
 protected:
  const ParameterLayout layout_ = *ParameterLayout::Create({
      {.name = "a", .shape = {7, 5}, .initializer = Initializer::kUniform, .scale = 1},
      {.name = "b", .shape = {33}, .initializer = Initializer::kUniform, .scale = 1, .optimizer_group = 1},
      {.name = "c", .shape = {100}, .initializer = Initializer::kUniform, .scale = 1},
  });
  const std::vector<OptimizerConfig> optimizers_ = {
      GetParam(), {.kind = OptimizerKind::kMomentum, .learning_rate = 0.5f, .momentum = 0.5f}};
};

TEST_P(CudaReplicaTest, UpdatesAsTheHostDoesAndGoesOnForIt) {
  LayoutOptimizer optimizer = *LayoutOptimizer::Create(layout_, {0, layout_.size()}, optimizers_);
  std::vector<float> expected(layout_.size());
  layout_.Initialize(1, {0, layout_.size()}, expected);
  std::vector<float> parameters = expected;
  const auto first = MustMake(layout_, optimizers_), second = MustMake(layout_, optimizers_);
  ASSERT_TRUE(first->Load(parameters).ok());
  ASSERT_EQ(first->slot_count(), optimizer.slot_count());
  for (uint64_t step = 0; step < 10; ++step) {
    const std::vector<float> gradient = SomeGradient(layout_, step);
    optimizer.Apply(expected, gradient, 0.25f, expected);
    CudaReplica& replica = step < 5 ? *first : *second;
    if (step == 5) {
      second->SkipTo(step);
      ASSERT_TRUE(first->Store(parameters).ok());
      ASSERT_TRUE(second->Load(parameters).ok());
      for (int slot = 0; slot < optimizer.slot_count(); ++slot) {
        std::vector<float> of_host(layout_.size()), of_device(layout_.size(), NAN);
        LayoutOptimizer before = *LayoutOptimizer::Create(layout_, {0, layout_.size()}, optimizers_);
        ASSERT_TRUE(first->CopySlot(slot, of_device).ok());
        before.SetSlot(slot, of_device);
        before.CopySlot(slot, of_host);
        EXPECT_EQ(of_device, of_host) << "zero where there is no slot";
        ASSERT_TRUE(second->SetSlot(slot, of_device).ok());
      }
    }
    ASSERT_TRUE(replica.Update(gradient, 0.25f).ok());
    ASSERT_TRUE(replica.Store(parameters).ok());
    EXPECT_EQ(parameters, expected) << step;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Optimizers, CudaReplicaTest,
    ::testing::Values(OptimizerConfig{.kind = OptimizerKind::kSgd, .learning_rate = 0.1f},
                      OptimizerConfig{.kind = OptimizerKind::kAdam, .learning_rate = 0.1f},
                      OptimizerConfig{.kind = OptimizerKind::kAdagrad, .learning_rate = 0.1f},
                      OptimizerConfig{.kind = OptimizerKind::kFtrl, .learning_rate = 0.1f, .l1 = 0.01f}));

// Large enough for two parts.
class CudaReplicaModelTest : public CudaTest {
 protected:
  absl::StatusOr<std::unique_ptr<Model>> MakeModel(Replica* replica) {
    return MakeCudaModel(0, plan_, {.largest_batch = kBatch, .seed = kSeed, .replica = replica});
  }

  const ModelPlan plan_ = *PlanModel(FindModel({.model = "mnist_mlp", .hidden = {300, 300}})->spec);
  const std::vector<OptimizerConfig> optimizers_ = {{.kind = OptimizerKind::kSgd, .learning_rate = 0.5f}};
  const std::unique_ptr<CudaReplica> replica_ = MakeReplica();
  std::vector<float> parameters_ = ExactParameters(plan_.layout, 3);
  const std::vector<float> no_parameters_ = std::vector<float>(plan_.layout.size(), NAN);

 private:
  // Null where the test is skipped.
  std::unique_ptr<CudaReplica> MakeReplica() const {
    auto replica = CudaReplica::Create(0, plan_.layout, optimizers_);
    return replica.ok() ? *std::move(replica) : nullptr;
  }
};

TEST_F(CudaReplicaModelTest, PassesTakeItsParametersAndLeaveItTheGradient) {
  const auto model = MakeModel(replica_.get()), without = MakeModel(nullptr);
  ASSERT_TRUE(model.ok() && without.ok()) << model.status() << without.status();
  ASSERT_TRUE(replica_->Load(parameters_).ok());
  for (uint64_t step = 0; step < 4; ++step) {
    const ExactBatch data(step, kBatch, plan_.spec.input.size(), 10);
    std::vector<float> expected(plan_.layout.size()), unused(plan_.layout.size(), 7);
    const BatchResult result = (*without)->ForwardBackward(parameters_, data.batch(), expected);
    std::vector<int64_t> parts;
    const BatchResult own =
        (*model)->ForwardBackward(no_parameters_, data.batch(), unused, [&](int64_t begin) {
          const LayoutRange part{begin, parts.empty() ? plan_.layout.size() : parts.back()};
          std::vector<float> values(part.size());
          ASSERT_TRUE(replica_->ReadGradient(part, values).ok());
          EXPECT_TRUE(std::equal(values.begin(), values.end(), expected.begin() + begin)) << step;
          parts.push_back(begin);
        });
    ASSERT_TRUE((*model)->status().ok()) << (*model)->status();
    EXPECT_EQ(parts.size(), 1u) << "of two; the last ends with the pass";
    EXPECT_EQ(own.loss_sum, result.loss_sum);
    EXPECT_EQ(unused, std::vector<float>(plan_.layout.size(), 7));
    std::vector<float> gradient(plan_.layout.size());
    ASSERT_TRUE(replica_->ReadGradient({0, plan_.layout.size()}, gradient).ok());
    EXPECT_EQ(gradient, expected) << step;
    EXPECT_TRUE(replica_->is_finite());
    EXPECT_EQ((*model)->Evaluate(no_parameters_, data.batch()).loss_sum,
              (*without)->Evaluate(parameters_, data.batch()).loss_sum);
    ASSERT_TRUE(replica_->Update(replica_->gradient(), 1.0f / kBatch).ok());
    ASSERT_TRUE(replica_->Store(parameters_).ok());
  }
}

TEST_F(CudaReplicaModelTest, OutlivesItsModel) {
  const ExactBatch data(4, kBatch, plan_.spec.input.size(), 10);
  ASSERT_TRUE(replica_->Load(parameters_).ok());
  std::vector<float> unused(plan_.layout.size());
  std::vector<double> losses;
  for (int time = 0; time < 2; ++time) {
    const auto model = MakeModel(replica_.get());
    ASSERT_TRUE(model.ok()) << model.status();
    for (int step = 0; step < 3; ++step) {
      losses.push_back((*model)->ForwardBackward(no_parameters_, data.batch(), unused).loss_sum);
      ASSERT_TRUE(replica_->Update(replica_->gradient(), 0.01f / kBatch).ok());
    }
  }
  EXPECT_TRUE(std::is_sorted(losses.rbegin(), losses.rend())) << "of one batch, again and again";
  EXPECT_LT(losses.back(), losses.front());
}

TEST_F(CudaReplicaModelTest, SaysWhatIsNotFiniteOfThisPassAndNoOther) {
  const auto model = MakeModel(replica_.get());
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_TRUE(replica_->Load(parameters_).ok());
  std::vector<float> unused(plan_.layout.size());
  for (const bool is_finite : {true, false, true, false}) {
    std::vector<float> features(kBatch * plan_.spec.input.size(), 0.5f);
    if (!is_finite) features[17] = INFINITY;
    const std::vector<int32_t> labels(kBatch, 3);
    (*model)->ForwardBackward(no_parameters_, {.features = features, .labels = labels}, unused);
    ASSERT_TRUE((*model)->status().ok()) << (*model)->status();
    EXPECT_EQ(replica_->is_finite(), is_finite);
  }
}

}  // namespace
}  // namespace muster
