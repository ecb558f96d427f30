// How a thread convolves a group of samples, and how it gets the gradients. Inside of convolution.cc alone,
// which makes the groups, gives them to threads and pools.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/convolution.h"

namespace muster {

/// The gradients of a ConvolutionShape, without its activation and pooling. What takes a thread's number may
/// be called by different threads at the same time, each with its own; the rest by one thread while no other
/// calls. std::bad_alloc is thrown; after it there can be sums of some groups alone.
class ConvolutionGradients {
 public:
  virtual ~ConvolutionGradients() = default;

  /// How convolved values and their gradients lie: MaxPoolShape::input_block.
  virtual int64_t convolved_block() const = 0;

  /// Before a pass, for each size of its groups: makes what threads [0, threads) need.
  virtual void Prepare(int threads, int64_t samples) = 0;

  /// The weights of the input's gradients that follow.
  virtual void SetWeights(std::span<const float> weights) = 0;

  /// Adds to the thread's sums.
  virtual void AddParameterGradient(int thread, int64_t samples, const float* input,
                                    const float* convolved_gradient) = 0;

  virtual void InputGradient(int thread, int64_t samples, const float* convolved_gradient,
                             float* input_gradient) = 0;

  /// What all threads have added since the last time, of which there is at least one group, in the order of
  /// their numbers.
  virtual void TakeParameterGradient(std::span<float> weights_gradient, std::span<float> bias_gradient) = 0;
};

/// All of it by oneDNN.
class DirectConvolution : public ConvolutionGradients {
 public:
  /// The weights of the forward passes that follow.
  virtual void SetForwardWeights(std::span<const float> weights) = 0;

  virtual void Forward(int thread, int64_t samples, const float* input, const float* bias,
                       float* convolved) = 0;
};

/// For all shapes; groups have up to `largest_group` samples.
std::unique_ptr<DirectConvolution> MakeDirectConvolution(const ConvolutionShape& shape,
                                                         int64_t largest_group);

/// The gradients by kernels/winograd.h; nothing if that is not for the shape, or not faster.
std::unique_ptr<ConvolutionGradients> MakeWinogradGradients(const ConvolutionShape& shape,
                                                            int64_t largest_group);

}  // namespace muster
