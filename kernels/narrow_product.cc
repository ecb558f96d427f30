#include "kernels/narrow_product.h"

#include <cstdint>

#include "base/status.h"

namespace muster {
namespace {

constexpr int64_t kMaxOutputs = 16;
// With fewer inputs the rest that is no whole tile weighs too much.
constexpr int64_t kMinInputs = 256;

namespace baseline {
constexpr int kLanes = 4;
constexpr int kTileOutputs = 5;
#include "kernels/narrow_product_inl.h"
}  // namespace baseline

#if defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2,fma")
namespace avx2 {
constexpr int kLanes = 8;
constexpr int kTileOutputs = 5;
#include "kernels/narrow_product_inl.h"
}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx512f,fma")
namespace avx512 {
constexpr int kLanes = 16;
constexpr int kTileOutputs = 10;
#include "kernels/narrow_product_inl.h"
}  // namespace avx512
#pragma GCC pop_options
#endif

// As oneDNN chooses, so that an instruction set that is pinned holds here too.
decltype(&baseline::BackwardWeights) Choose() {
#if defined(__x86_64__)
  const std::string name = InstructionSetName();
  if (name.starts_with("avx512")) return avx512::BackwardWeights;
  if (name.starts_with("avx2")) return avx2::BackwardWeights;
#endif
  return baseline::BackwardWeights;
}

}  // namespace

bool IsNarrow(const DenseShape& shape) { return shape.outputs <= kMaxOutputs && shape.inputs >= kMinInputs; }

void NarrowBackwardWeights(const DenseShape& shape, const float* input, const float* output_gradient,
                           float* weights_gradient) {
  MUSTER_CHECK(shape.outputs <= kMaxOutputs);
  static const auto backward_weights = Choose();
  int64_t i = backward_weights(shape, input, output_gradient, weights_gradient);
  for (; i < shape.inputs; ++i) {
    for (int64_t o = 0; o < shape.outputs; ++o) {
      float sum = 0;
      for (int64_t b = 0; b < shape.batch; ++b) {
        sum += input[b * shape.inputs + i] * output_gradient[b * shape.outputs + o];
      }
      weights_gradient[i * shape.outputs + o] = sum;
    }
  }
}

}  // namespace muster
