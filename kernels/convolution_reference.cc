#include "kernels/convolution_reference.h"

namespace muster {
namespace {

// Calls work(input, weights, output) with the places of the first channel of each pixel of the input, of the
// weights [channels, outputs] it is multiplied with, and of the pixel of the output that this is added to.
template <typename Work>
void ForEachPair(const ConvolutionShape& shape, int64_t samples, const Work& work) {
  const int64_t before = shape.padding == Padding::kSame ? (shape.kernel - 1) / 2 : 0;
  for (int64_t sample = 0; sample < samples; ++sample) {
    for (int64_t y = 0; y < shape.convolved_height(); ++y) {
      for (int64_t x = 0; x < shape.convolved_width(); ++x) {
        for (int64_t ky = 0; ky < shape.kernel; ++ky) {
          for (int64_t kx = 0; kx < shape.kernel; ++kx) {
            const int64_t in_y = y + ky - before, in_x = x + kx - before;
            if (in_y < 0 || in_y >= shape.height || in_x < 0 || in_x >= shape.width) continue;
            work(((sample * shape.height + in_y) * shape.width + in_x) * shape.channels,
                 (ky * shape.kernel + kx) * shape.channels * shape.outputs,
                 ((sample * shape.convolved_height() + y) * shape.convolved_width() + x) * shape.outputs);
          }
        }
      }
    }
  }
}

}  // namespace

std::vector<double> ReferenceConvolutionForward(const ConvolutionShape& shape, int64_t samples,
                                                std::span<const double> input,
                                                std::span<const double> weights,
                                                std::span<const double> bias) {
  std::vector<double> output(samples * shape.convolved_height() * shape.convolved_width() * shape.outputs);
  for (size_t i = 0; i < output.size(); ++i) output[i] = bias[i % shape.outputs];
  ForEachPair(shape, samples, [&](int64_t in, int64_t weight, int64_t out) {
    for (int64_t c = 0; c < shape.channels; ++c) {
      for (int64_t o = 0; o < shape.outputs; ++o) {
        output[out + o] += input[in + c] * weights[weight + c * shape.outputs + o];
      }
    }
  });
  return output;
}

ReferenceGradients ReferenceConvolutionBackward(const ConvolutionShape& shape, int64_t samples,
                                                std::span<const double> input,
                                                std::span<const double> weights,
                                                std::span<const double> output_gradient) {
  ReferenceGradients gradients{.input = std::vector<double>(input.size()),
                               .weights = std::vector<double>(weights.size()),
                               .bias = std::vector<double>(shape.outputs)};
  for (size_t i = 0; i < output_gradient.size(); ++i) {
    gradients.bias[i % shape.outputs] += output_gradient[i];
  }
  ForEachPair(shape, samples, [&](int64_t in, int64_t weight, int64_t out) {
    for (int64_t c = 0; c < shape.channels; ++c) {
      for (int64_t o = 0; o < shape.outputs; ++o) {
        gradients.weights[weight + c * shape.outputs + o] += input[in + c] * output_gradient[out + o];
        gradients.input[in + c] += weights[weight + c * shape.outputs + o] * output_gradient[out + o];
      }
    }
  });
  return gradients;
}

}  // namespace muster
