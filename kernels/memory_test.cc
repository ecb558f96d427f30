// Layers where memory ends: this program's allocations, and those of oneDNN, fail when a test says so.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <vector>

#include "kernels/convolution.h"
#include "kernels/dense.h"
#include "kernels/threads.h"

namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
std::atomic<int64_t> allocations_left = kNoLimit;

void* Allocate(std::size_t alignment, std::size_t size) {
  if (allocations_left != kNoLimit && allocations_left.fetch_sub(1) <= 0) return nullptr;
  return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

void* New(std::size_t size, std::size_t alignment) {
  void* const place = Allocate(std::max(alignment, alignof(std::max_align_t)), size);
  if (place == nullptr) throw std::bad_alloc();
  return place;
}

}  // namespace

extern "C" int posix_memalign(void** place, std::size_t alignment, std::size_t size) noexcept {
  *place = Allocate(alignment, size);
  return *place == nullptr ? ENOMEM : 0;
}
void* operator new(std::size_t size) { return New(size, 1); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return New(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* place) noexcept { std::free(place); }
void operator delete(void* place, std::size_t) noexcept { std::free(place); }
void operator delete(void* place, std::align_val_t) noexcept { std::free(place); }
void operator delete(void* place, std::size_t, std::align_val_t) noexcept { std::free(place); }

namespace muster {
namespace {

// Runs what `make_pass` returns with one allocation more each time, until that is enough: before, it has to
// throw std::bad_alloc and nothing else. Returns how many were needed.
template <typename MakePass>
int64_t AllocationsOf(const MakePass& make_pass) {
  for (int64_t count = 0;; ++count) {
    const auto pass = make_pass();
    pass();  // makes what is kept
    allocations_left = count;
    bool is_done = true;
    try {
      pass();
    } catch (const std::bad_alloc&) {
      is_done = false;
    }
    allocations_left = kNoLimit;
    if (is_done) return count;
  }
}

class Memory : public ::testing::TestWithParam<int> {
 protected:
  Memory() { SetKernelThreads(GetParam()); }
  ~Memory() override { SetKernelThreads(1); }
};

TEST_P(Memory, ADenseLayerWithoutItThrows) {
  constexpr int64_t kBatch = 64, kInputs = 300, kOutputs = 200;
  std::vector<float> input(kBatch * kInputs), weights(kInputs * kOutputs), bias(kOutputs),
      output(kBatch * kOutputs), output_gradient(output.size()), weights_gradient(weights.size()),
      input_gradient(input.size());
  const auto make_pass = [&] {
    const auto dense = std::make_shared<Dense>(
        DenseShape{.batch = kBatch, .inputs = kInputs, .outputs = kOutputs}, Activation::kNone);
    return [&, dense] {
      dense->Forward(kBatch, input, weights, bias, output);
      dense->Backward(kBatch, input, weights, output, output_gradient, weights_gradient, bias,
                      input_gradient);
    };
  };
  EXPECT_GT(AllocationsOf(make_pass), 0) << "oneDNN packs nothing here";
}

// Most are oneDNN's, on several threads.
TEST_P(Memory, AConvolutionWithoutItThrows) {
  constexpr int64_t kBatch = 8;
  const ConvolutionShape shape{.height = 12, .width = 12, .channels = 3, .outputs = 4, .kernel = 3};
  std::vector<float> input(kBatch * shape.input_size()), weights(shape.weights_size()), bias(shape.outputs),
      output(kBatch * shape.output_size()), weights_gradient(weights.size()), input_gradient(input.size());
  const auto make_pass = [&] {
    const auto convolution = std::make_shared<Convolution>(shape, kBatch);
    return [&, convolution] {
      convolution->Forward(kBatch, input, weights, bias, output);
      convolution->Backward(kBatch, input, weights, output, weights_gradient, bias, input_gradient);
    };
  };
  EXPECT_GT(AllocationsOf(make_pass), 0);
}

INSTANTIATE_TEST_SUITE_P(Threads, Memory, ::testing::Values(1, 2));

}  // namespace
}  // namespace muster
