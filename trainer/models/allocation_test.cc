// What a step allocates: this program's operator new counts, but for calls from oneDNN, which packs matrices
// and copies the arguments of its primitives.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>

#include "kernels/layout_optimizer.h"
#include "trainer/data/mnist.h"
#include "trainer/data/synthetic_digits.h"
#include "trainer/models/cpu_model.h"

namespace {

std::atomic<int64_t> allocations = 0;

bool IsOneDnn(void* caller) {
  Dl_info info{};
  return ::dladdr(caller, &info) != 0 && std::strstr(info.dli_fname, "libdnnl") != nullptr;
}

void* Allocate(std::size_t size, std::size_t alignment, void* caller) {
  if (!IsOneDnn(caller)) ++allocations;
  void* place = nullptr;
  if (::posix_memalign(&place, std::max(alignment, sizeof(void*)), size) != 0) throw std::bad_alloc();
  return place;
}

}  // namespace

void* operator new(std::size_t size) {
  return Allocate(size, alignof(std::max_align_t), __builtin_return_address(0));
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return Allocate(size, static_cast<std::size_t>(alignment), __builtin_return_address(0));
}
void operator delete(void* place) noexcept { std::free(place); }
void operator delete(void* place, std::size_t) noexcept { std::free(place); }
void operator delete(void* place, std::align_val_t) noexcept { std::free(place); }
void operator delete(void* place, std::size_t, std::align_val_t) noexcept { std::free(place); }

namespace muster {
namespace {

// Of the third one: the pass and the update.
int64_t AllocationsOfAStep(const ModelConfig& config) {
  constexpr int64_t kBatch = 50;
  const ModelRecipe recipe = *FindModel(config);
  const auto model = MakeCpuModel(*PlanModel(recipe.spec), {.largest_batch = kBatch, .seed = 1});
  const Dataset digits = MakeSyntheticDigits(1, kBatch);
  BatchBuffer buffer(kBatch, kMnistPixels);
  std::vector<float> parameters(model->layout().size()), gradient(parameters.size());
  const OptimizerConfig optimizers[] = {recipe.defaults.optimizer};
  auto optimizer = *LayoutOptimizer::Create(model->layout(), {0, model->layout().size()}, optimizers);
  int64_t before = 0;
  for (int step = 0; step < 3; ++step) {
    before = allocations;
    const Batch batch = buffer.FillInOrder(digits, {0, kBatch});
    model->ForwardBackward(parameters, batch, gradient);
    optimizer.Apply(parameters, gradient, 1.0f / kBatch, parameters);
  }
  return allocations - before;
}

TEST(Allocation, AStepAllocatesNothingOfItsOwn) {
  EXPECT_GT(allocations, 0) << "they are not counted";
  for (const ModelConfig& config :
       std::initializer_list<ModelConfig>{{.model = "mnist_softmax"},
                                          {.model = "mnist_mlp"},
                                          {.model = "mnist_mlp", .hidden = {512, 512}},
                                          {.model = "mnist_cnn", .variant = "lenet"},
                                          {.model = "mnist_cnn", .variant = "deep"}}) {
    EXPECT_EQ(AllocationsOfAStep(config), 0) << Describe(config);
  }
}

}  // namespace
}  // namespace muster
