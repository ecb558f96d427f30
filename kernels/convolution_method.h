// How a thread convolves a group of samples. Inside of convolution.cc alone, which makes the groups, gives
// them to threads and pools what comes out.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/convolution.h"

namespace muster {

/// Bias and convolution of a ConvolutionShape, without its activation and pooling. What takes a thread's
/// number may be called by different threads at the same time, each with its own; the rest by one thread
/// while no other calls. std::bad_alloc is thrown.
class ConvolutionMethod {
 public:
  virtual ~ConvolutionMethod() = default;

  /// How convolved values lie: MaxPoolShape::input_block.
  virtual int64_t convolved_block() const = 0;

  /// Before a pass, for each size of its groups: makes what threads [0, threads) need.
  virtual void Prepare(int threads, int64_t samples) = 0;

  /// The weights of the passes that follow.
  virtual void SetForwardWeights(std::span<const float> weights) = 0;
  virtual void SetBackwardWeights(std::span<const float> weights) = 0;

  virtual void Forward(int thread, int64_t samples, const float* input, const float* bias,
                       float* convolved) = 0;

  /// Adds to the thread's sums.
  virtual void AddParameterGradient(int thread, int64_t samples, const float* input,
                                    const float* convolved_gradient) = 0;

  virtual void InputGradient(int thread, int64_t samples, const float* convolved_gradient,
                             float* input_gradient) = 0;

  /// What all threads have added since the last time, of which there is at least one group, in the order of
  /// their numbers.
  virtual void TakeParameterGradient(std::span<float> weights_gradient, std::span<float> bias_gradient) = 0;
};

/// By oneDNN, for all shapes; groups have up to `largest_group` samples.
std::unique_ptr<ConvolutionMethod> MakeDirectConvolution(const ConvolutionShape& shape,
                                                         int64_t largest_group);

/// By kernels/winograd.h; nothing if that is not for the shape, or not faster.
std::unique_ptr<ConvolutionMethod> MakeWinogradConvolution(const ConvolutionShape& shape,
                                                           int64_t largest_group);

}  // namespace muster
