// The loss of classifiers on a CUDA device, and its gradient.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace muster::cuda {

/// Sums over samples, on the device.
struct LossSums {
  double loss_sum;
  int64_t correct;
};

inline constexpr int kMaxLossBlocks = 128;

/// Scratch memory on the device, all zeros before its first use; of one stream.
struct LossScratch {
  LossSums parts[kMaxLossBlocks];
  unsigned finished;  // blocks of the call under way
};

/// As SoftmaxCrossEntropy (kernels/cross_entropy.h), in float but for the sums. gradient [batch, classes] may
/// be `logits` itself, or null: not wanted. The sums go to *result, or are added to it. A label outside
/// [0, classes) makes its sample's loss and gradient NaN. An empty batch has sums of zero.
cudaError_t SoftmaxCrossEntropy(int64_t batch, int64_t classes, const float* logits, const int32_t* labels,
                                float* gradient, bool add, LossScratch* scratch, LossSums* result,
                                cudaStream_t stream);

/// As SigmoidCrossEntropy (kernels/cross_entropy.h), in double but for one exponential; otherwise as
/// SoftmaxCrossEntropy. gradient [batch]; a label is 0 or 1.
cudaError_t SigmoidCrossEntropy(int64_t batch, const float* logits, const int32_t* labels, float* gradient,
                                bool add, LossScratch* scratch, LossSums* result, cudaStream_t stream);

}  // namespace muster::cuda
