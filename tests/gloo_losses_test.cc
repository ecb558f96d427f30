// The same training with its gradients summed by Gloo, whose sums are made by none of our code, by the group
// of threads, which sums in order of rank as servers do, and in one process.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/file.h"
#include "collective/gloo.h"
#include "collective/in_process.h"
#include "kernels/optimizer.h"
#include "kernels/threads.h"
#include "trainer/data/batch.h"
#include "trainer/data/mnist.h"
#include "trainer/data/synthetic_digits.h"
#include "trainer/models/cpu_model.h"
#include "trainer/models/model.h"

namespace muster {
namespace {

#ifdef __SANITIZE_ADDRESS__
constexpr int kSteps = 50;  // each takes thirty times as long
#else
constexpr int kSteps = 200;
#endif
constexpr int64_t kBatch = 101;  // which two and four workers cannot share equally
constexpr uint64_t kSeed = 1;

class GlooLosses : public testing::Test {
 protected:
  using MakeGroup = std::function<absl::StatusOr<std::unique_ptr<Collective>>(int rank)>;

  // Of each step, summed over the samples of all ranks.
  std::vector<double> Train(const ModelConfig& config, int ranks, const MakeGroup& make) {
    std::vector<double> losses(kSteps);
    std::mutex mutex;  // guards the losses
    {
      std::vector<std::jthread> threads;
      for (int rank = 0; rank < ranks; ++rank) {
        threads.emplace_back([&, rank] {
          auto group = make(rank);
          ASSERT_TRUE(group.ok()) << group.status();
          TrainRank(config, rank, ranks, **group, [&](int step, double loss) {
            const std::lock_guard lock(mutex);
            losses[step] += loss;
          });
        });
      }
    }
    return losses;
  }

  std::vector<double> TrainByGloo(const ModelConfig& config, int ranks) {
    const TemporaryDirectory folder;
    return Train(config, ranks, [&](int rank) {
      return MakeGloo({.rank = rank, .size = ranks, .meeting_folder = folder.path()});
    });
  }

  std::vector<double> TrainByThreads(const ModelConfig& config, int ranks) {
    std::vector<std::unique_ptr<Collective>> groups = MakeInProcess(ranks);
    return Train(config, ranks, [&](int rank) { return std::move(groups[rank]); });
  }

  static void ExpectClose(const std::vector<double>& losses, const std::vector<double>& expected) {
    for (int step = 0; step < kSteps; ++step) {
      ASSERT_NEAR(losses[step], expected[step], 1e-5 * expected[step]) << "step " << step;
    }
  }

 private:
  void TrainRank(const ModelConfig& config, int rank, int ranks, Collective& group,
                 const std::function<void(int step, double loss)>& tell) {
    SetKernelThreads(1);
    const ModelRecipe recipe = *FindModel(config);
    const std::unique_ptr<Model> model = MakeCpuModel(*PlanModel(recipe.spec), {.largest_batch = kBatch});
    const int64_t size = model->layout().size();
    std::vector<float> parameters(size), gradient(size);
    model->layout().Initialize(kSeed, {0, size}, parameters);
    const auto optimizer = MakeOptimizer(recipe.defaults.optimizer, size);
    const SampleOrder order(kSeed, mnist_.train.size());
    BatchBuffer buffer(kBatch, kMnistPixels);
    for (int step = 0; step < kSteps; ++step) {
      const Batch batch = buffer.Fill(mnist_.train, order, BatchSlice(step, kBatch, rank, ranks));
      tell(step, model->ForwardBackward(parameters, batch, gradient).loss_sum);
      const absl::Status summed = group.Run(AllReduce(gradient, gradient));
      ASSERT_TRUE(summed.ok()) << summed;
      optimizer->Apply(parameters, gradient, 1.0f / kBatch, parameters);
    }
  }

  const TrainTestData mnist_ = MakeSyntheticMnist(1);
};

TEST_F(GlooLosses, OfAnMlpAreThoseOfOneProcess) {
  const ModelConfig mlp{.model = "mnist_mlp", .hidden = {50}};
  const std::vector<double> alone = TrainByThreads(mlp, 1);
  EXPECT_LT(alone.back(), 0.5 * alone.front());
  for (const int ranks : {1, 2, 4}) {
    ExpectClose(TrainByGloo(mlp, ranks), alone);
    ExpectClose(TrainByThreads(mlp, ranks), alone);
  }
}

// The sum of two numbers is the same in any order; of four it is not, and where pooling meets two values that
// are nearly equal, rounding decides which of them wins.
TEST_F(GlooLosses, OfLenetAreThoseOfTheSamePartsOfABatch) {
  const ModelConfig lenet{.model = "mnist_cnn", .variant = "lenet"};
  for (const int ranks : {1, 2}) EXPECT_EQ(TrainByGloo(lenet, ranks), TrainByThreads(lenet, ranks)) << ranks;
}

}  // namespace
}  // namespace muster
