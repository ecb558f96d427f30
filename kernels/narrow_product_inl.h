// The loops of narrow_product.cc, which includes this file once for each instruction set, inside a namespace
// of its own and under the target options of that set. So it has no include guard, and includes only what is
// made for that: anything else would be compiled for the wrong machine.
//
// kLanes: floats in a vector. kTileOutputs: outputs computed at a time, as many as registers allow. The loops
// over them must be unrolled, which -O2 would not do: the sums would live in memory instead of registers.

#include "kernels/vector_inl.h"

constexpr int64_t kTileInputs = 2 * kLanes;

// tile[o * kTileInputs + i] = sum over the batch of input[i] * gradient[o], for two vectors of inputs.
template <int kOutputs>
inline void SumOuterProducts(const DenseShape& shape, const float* input, const float* gradient,
                             float* tile) {
  Vector sums[2][kOutputs] = {};
  for (int64_t b = 0; b < shape.batch; ++b, input += shape.inputs, gradient += shape.outputs) {
    const Vector x[2] = {Load(input), Load(input + kLanes)};
#pragma GCC unroll 16
    for (int o = 0; o < kOutputs; ++o) {
      sums[0][o] += x[0] * gradient[o];
      sums[1][o] += x[1] * gradient[o];
    }
  }
#pragma GCC unroll 16
  for (int o = 0; o < kOutputs; ++o) {
    Store(sums[0][o], tile + o * kTileInputs);
    Store(sums[1][o], tile + o * kTileInputs + kLanes);
  }
}

// The `count` < kOutputs + 1 outputs that are left over from whole tiles.
template <int kOutputs>
inline void SumLastOuterProducts(int64_t count, const DenseShape& shape, const float* input,
                                 const float* gradient, float* tile) {
  if constexpr (kOutputs > 0) {
    if (count == kOutputs) return SumOuterProducts<kOutputs>(shape, input, gradient, tile);
    SumLastOuterProducts<kOutputs - 1>(count, shape, input, gradient, tile);
  }
}

// The inputs [0, returned value), in whole tiles.
int64_t BackwardWeights(const DenseShape& shape, const float* input, const float* gradient,
                        float* weights_gradient) {
  int64_t i = 0;
  for (; i + kTileInputs <= shape.inputs; i += kTileInputs) {
    float tile[kMaxOutputs * kTileInputs];
    int64_t o = 0;
    for (; o + kTileOutputs <= shape.outputs; o += kTileOutputs) {
      SumOuterProducts<kTileOutputs>(shape, input + i, gradient + o, tile + o * kTileInputs);
    }
    SumLastOuterProducts<kTileOutputs - 1>(shape.outputs - o, shape, input + i, gradient + o,
                                           tile + o * kTileInputs);
    for (int64_t lane = 0; lane < kTileInputs; ++lane) {
      for (o = 0; o < shape.outputs; ++o) {
        weights_gradient[(i + lane) * shape.outputs + o] = tile[o * kTileInputs + lane];
      }
    }
  }
  return i;
}
