#include "kernels/threads.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/elementwise.h"
#include "kernels/kernel_testing.h"
#include "kernels/optimizer.h"

namespace muster {
namespace {

// The parts, in order, and whether all ran on different threads.
struct Parts {
  std::vector<std::pair<int64_t, int64_t>> ranges;
  std::set<std::thread::id> threads;
};

Parts PartsOf(int64_t count, int64_t floats) {
  Parts parts;
  std::mutex mutex;
  ForEachPart(count, floats, [&](int64_t begin, int64_t end) {
    const std::lock_guard lock(mutex);
    parts.ranges.emplace_back(begin, end);
    parts.threads.insert(std::this_thread::get_id());
  });
  std::sort(parts.ranges.begin(), parts.ranges.end());
  return parts;
}

TEST(Threads, AreAtLeastOne) {
  SetKernelThreads(2);
  EXPECT_EQ(omp_get_max_threads(), 2);
  SetKernelThreads(0);
  EXPECT_EQ(omp_get_max_threads(), 1);
}

TEST(Threads, PartsFollowEachOtherAndAreWorthAThread) {
  using Ranges = std::vector<std::pair<int64_t, int64_t>>;
  SetKernelThreads(3);
  const int64_t size = 3 * kSmallestPart;
  Parts parts = PartsOf(size, 1);
  EXPECT_EQ(parts.ranges, (Ranges{{0, size / 3}, {size / 3, 2 * size / 3}, {2 * size / 3, size}}));
  EXPECT_EQ(parts.threads.size(), 3);
  EXPECT_EQ(PartsOf(size - 1, 1).ranges, (Ranges{{0, (size - 1) / 2}, {(size - 1) / 2, size - 1}}));
  EXPECT_EQ(PartsOf(kSmallestPart, 1).ranges, (Ranges{{0, kSmallestPart}}));
  EXPECT_EQ(PartsOf(7, kSmallestPart).ranges, (Ranges{{0, 2}, {2, 4}, {4, 7}}));
  EXPECT_EQ(PartsOf(1, size).ranges, (Ranges{{0, 1}}));
  EXPECT_EQ(PartsOf(0, 1).ranges, (Ranges{{0, 0}}));
  SetKernelThreads(1);
  EXPECT_EQ(PartsOf(size, 1).ranges, (Ranges{{0, size}}));
}

TEST(Threads, WhereNothingIsSetLoopsStayOnTheirThread) {
  SetKernelThreads(2);
  std::thread([] { EXPECT_EQ(PartsOf(8 * kSmallestPart, 1).ranges.size(), 1); }).join();
  SetKernelThreads(1);
}

TEST(Threads, OptimizersGiveTheSameBitsOnAnyNumber) {
  const int64_t size = 5 * kSmallestPart + 3;
  const std::vector<float> start = RandomFloats(1, size), gradient = RandomFloats(2, size);
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kMomentum, OptimizerKind::kAdagrad,
                                   OptimizerKind::kAdam, OptimizerKind::kFtrl}) {
    std::vector<std::vector<float>> results;
    for (const int threads : {1, 2, 3}) {
      SetKernelThreads(threads);
      const std::unique_ptr<Optimizer> optimizer = MakeOptimizer(UsualOptimizer(kind), size);
      std::vector<float>& parameters = results.emplace_back(start);
      for (int i = 0; i < 3; ++i) optimizer->Apply(parameters, gradient, 0.5f, parameters);
    }
    EXPECT_NE(results[0], start);
    EXPECT_EQ(results[1], results[0]) << OptimizerName(kind);
    EXPECT_EQ(results[2], results[0]) << OptimizerName(kind);
  }
  SetKernelThreads(1);
}

TEST(Threads, AValueThatIsNotFiniteIsFoundInAnyPart) {
  SetKernelThreads(3);
  std::vector<float> values(3 * kSmallestPart);
  EXPECT_TRUE(AllFinite(values));
  for (const int64_t i : {int64_t{0}, kSmallestPart - 1, kSmallestPart, 3 * kSmallestPart - 1}) {
    values[i] = NAN;
    EXPECT_FALSE(AllFinite(values)) << i;
    values[i] = 0;
  }
  SetKernelThreads(1);
}

}  // namespace
}  // namespace muster
