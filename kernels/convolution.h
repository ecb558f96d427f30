// A convolution with bias, ReLU and max pooling on the CPU, forward and backward, as one operation.
//
// One, because the samples pass through in groups whose convolved values stay in a core's own cache until
// they are pooled: only what is pooled goes to memory, and inside of a group the values may lie as oneDNN
// likes them. ReLU is applied where the values are pooled, and its gradient is that of the pooling. Groups
// are shared out among the OpenMP threads that the calling thread may use (SetKernelThreads).
//
// Convolutions go by oneDNN; the gradients of those with kernels of 5 x 5 between several channels by
// Winograd's minimal filtering (kernels/winograd.h), which about halves their time and whose roundings are up
// to three times those of direct sums. Forward only direct sums will do: on a background of one colour they
// give equal values, among which the pooling chooses the first, whatever the weights are.
//
// Images are [samples, height, width, channels], row-major, outside; weights [kernel, kernel, channels,
// outputs]; strides are 1. Gradients are sums over the samples of the batch. The same bits come out for the
// same inputs, build, instruction set and number of threads. A NaN reaches every output it takes part in; by
// Winograd its neighbours too.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/dense.h"

namespace muster {

/// kSame: the output has the input's size; of kernel - 1 rows of zeros the smaller half goes before it, as in
/// TensorFlow. kValid: no zeros, so that the output is kernel - 1 smaller.
enum class Padding : uint8_t { kSame, kValid };

struct ConvolutionShape {
  int64_t height = 0;  // of the input
  int64_t width = 0;
  int64_t channels = 0;
  int64_t outputs = 0;  // channels of the output
  int64_t kernel = 0;
  Padding padding = Padding::kValid;
  Activation activation = Activation::kNone;
  int64_t pool_window = 1;  // of the max pooling of what the activation gives (max_pool.h); 1 is none

  int64_t convolved_height() const { return padding == Padding::kSame ? height : height - kernel + 1; }
  int64_t convolved_width() const { return padding == Padding::kSame ? width : width - kernel + 1; }
  int64_t input_size() const { return height * width * channels; }
  int64_t weights_size() const { return kernel * kernel * channels * outputs; }
  int64_t output_size() const {
    return convolved_height() / pool_window * (convolved_width() / pool_window) * outputs;
  }
};

/// Keeps what one batch's backward pass needs of its forward pass, and scratch memory. A size of batch that
/// was seen before, with the same number of threads, allocates nothing of its own. Sizes that do not fit
/// together are a bug and abort. After std::bad_alloc it can only be destroyed. One thread at a time.
class Convolution {
 public:
  /// All sizes of `shape` at least 1, the kernel no larger than a kValid input, the window no larger than the
  /// convolved image.
  Convolution(const ConvolutionShape& shape, int64_t largest_batch);
  ~Convolution();

  /// output [samples, output_size()] from input [samples, input_size()], weights [weights_size()] and bias
  /// [outputs]. samples from 0 to the largest batch.
  void Forward(int64_t samples, std::span<const float> input, std::span<const float> weights,
               std::span<const float> bias, std::span<float> output);

  /// After the Forward of the same batch, with its input and weights unchanged: weights_gradient
  /// [weights_size()], bias_gradient [outputs] and input_gradient [samples, input_size()], which may be empty
  /// if not needed, from output_gradient [samples, output_size()].
  void Backward(int64_t samples, std::span<const float> input, std::span<const float> weights,
                std::span<const float> output_gradient, std::span<float> weights_gradient,
                std::span<float> bias_gradient, std::span<float> input_gradient);

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace muster
