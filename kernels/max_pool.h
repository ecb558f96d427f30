// Max pooling on the CPU, forward and backward, with ReLU in front of it or not.
//
// Windows are squares side by side; rows and columns that fill no window are left out, as TensorFlow's VALID
// does, and their gradient is zero. Of equal values the first in the order of rows wins. A NaN in a window
// wins.
//
// Sizes that do not fit together are a bug and abort. Outputs overlap no input. Any thread may call, with
// outputs of its own; a call runs on one.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/dense.h"

namespace muster {

/// The place in a window, and that there is none, fit into a byte.
inline constexpr int64_t kLargestPoolWindow = 15;

struct MaxPoolShape {
  int64_t height = 0;  // of the input
  int64_t width = 0;
  int64_t channels = 0;
  int64_t window = 1;                         // no larger than the input; 1 leaves the activation alone
  Activation activation = Activation::kNone;  // of the input, before it is pooled
  // How the input lies in memory: 0 is [samples, height, width, channels], n is
  // [samples, blocks, height, width, n], where the last block may have places without a channel.
  int64_t input_block = 0;

  int64_t output_height() const { return height / window; }
  int64_t output_width() const { return width / window; }
  int64_t output_size() const { return output_height() * output_width() * channels; }
  int64_t input_size() const;  // of one sample in memory
};

/// output [samples, output_height, output_width, channels]; winners (the same shape): the place of the value
/// that won in its window, counted along the rows, or window * window where ReLU gave a zero.
void MaxPoolForward(const MaxPoolShape& shape, int64_t samples, std::span<const float> input,
                    std::span<float> output, std::span<uint8_t> winners);

/// input_gradient [samples, input_size()], of the values before the activation, from output_gradient
/// [samples, output_size()] and the winners of the forward pass. Places without a channel are left as they
/// are.
void MaxPoolBackward(const MaxPoolShape& shape, int64_t samples, std::span<const float> output_gradient,
                     std::span<const uint8_t> winners, std::span<float> input_gradient);

}  // namespace muster
