// Products, convolutions and poolings as fake_cuda has them, in float whatever is asked for.
#include <algorithm>
#include <atomic>
#include <climits>
#include <vector>

#include <dnnl.h>

#include "base/status.h"
#include "kernels/cuda/convolution.h"
#include "kernels/cuda/fake_cuda.h"
#include "kernels/cuda/matrix_products.h"
#include "kernels/cuda/max_pool.h"
#include "kernels/max_pool.h"
#include "kernels/threads.h"

namespace muster::cuda {
namespace {

// c = op(a) * op(b) + c_factor * c, which is not read for 0.
void MultiplyOnHost(const ProductShape& shape, const float* a, const float* b, float c_factor, float* c) {
  const auto& [transpose_a, transpose_b, m, n, k] = shape;
  SetKernelThreads(1);
  const dnnl_status_t status = dnnl_sgemm(transpose_a ? 'T' : 'N', transpose_b ? 'T' : 'N', m, n, k, 1, a,
                                          transpose_a ? m : k, b, transpose_b ? k : n, c_factor, c, n);
  MUSTER_CHECK(status == dnnl_success);
}

void AddBias(const float* bias, std::span<float> values, int64_t columns) {
  if (bias == nullptr) return;
  for (size_t i = 0; i < values.size(); ++i) values[i] += Reachable(bias, columns)[i % columns];
}

int64_t InputSize(const ConvolutionGeometry& g) { return g.height * g.width * g.channels; }
int64_t OutputPixels(const ConvolutionGeometry& g) { return g.output_height * g.output_width; }

// What lies under the kernel at each pixel of the output of one sample: [pixels, terms].
std::vector<float> Patches(const ConvolutionGeometry& g, std::span<const float> input) {
  std::vector<float> patches(OutputPixels(g) * g.terms());
  for (int64_t row = 0; row < OutputPixels(g) * g.kernel * g.kernel; ++row) {
    const int64_t tap = row % (g.kernel * g.kernel), pixel = row / (g.kernel * g.kernel);
    const int64_t y = pixel / g.output_width + tap / g.kernel - g.before;
    const int64_t x = pixel % g.output_width + tap % g.kernel - g.before;
    if (y < 0 || y >= g.height || x < 0 || x >= g.width) continue;
    std::copy_n(input.begin() + (y * g.width + x) * g.channels, g.channels,
                patches.begin() + row * g.channels);
  }
  return patches;
}

std::vector<float> Convolve(const ConvolutionGeometry& g, const float* input, const float* weights,
                            const float* bias) {
  const auto images = Reachable(input, g.samples * InputSize(g));
  Reachable(weights, g.terms() * g.outputs);
  std::vector<float> output(g.pixels() * g.outputs);
  for (int64_t sample = 0; sample < g.samples; ++sample) {
    const std::vector<float> patches = Patches(g, images.subspan(sample * InputSize(g), InputSize(g)));
    MultiplyOnHost({.m = OutputPixels(g), .n = g.outputs, .k = g.terms()}, patches.data(), weights, 0,
                   output.data() + sample * OutputPixels(g) * g.outputs);
  }
  AddBias(bias, output, g.outputs);
  return output;
}

MaxPoolShape ShapeOf(const PoolGeometry& g) {
  return {.height = g.height,
          .width = g.width,
          .channels = g.channels,
          .window = g.window,
          .activation = g.relu ? Activation::kRelu : Activation::kNone};
}

}  // namespace

// matrix_products.h

struct MatrixProducts::Plan {};

MatrixProducts::MatrixProducts(Math math) : math_(math) {}

MatrixProducts::~MatrixProducts() = default;

absl::StatusOr<std::unique_ptr<MatrixProducts>> MatrixProducts::Create(Math math) {
  std::unique_ptr<MatrixProducts> products(new MatrixProducts(math));
  for (DeviceArray<uint8_t>& workspace : products->workspaces_) {
    MUSTER_ASSIGN_OR_RETURN(workspace, ZerosOnDevice<uint8_t>(1));
  }
  return products;
}

absl::Status MatrixProducts::Multiply(const ProductShape& shape, const float* a, const float* b,
                                      const float* bias, float* c, Lane lane, cudaStream_t stream) {
  uint8_t* const workspace = workspaces_[static_cast<size_t>(lane)].data();
  MUSTER_CUDA_RETURN_IF_ERROR(LaunchFake(stream, [=] {
    std::atomic_ref in_use(*Reachable(workspace, 1).data());
    MUSTER_CHECK(in_use.exchange(1) == 0, "two products at once on one lane");
    const auto values = Reachable(c, shape.m * shape.n);
    if (shape.k == 0) {
      std::fill(values.begin(), values.end(), 0.0f);
    } else if (!values.empty()) {
      MultiplyOnHost(shape, Reachable(a, shape.m * shape.k).data(), Reachable(b, shape.k * shape.n).data(), 0,
                     c);
      AddBias(bias, values, shape.n);
    }
    in_use = 0;
  }));
  return absl::OkStatus();
}

// convolution.h

bool IsTooLarge(const ConvolutionGeometry& g) {
  constexpr int64_t kMost = INT_MAX / 2;
  return g.samples * InputSize(g) > kMost || g.pixels() * g.outputs > kMost ||
         (g.terms() + 1) * g.outputs > kMost;
}

ConvolutionGeometry InputGradientGeometry(const ConvolutionGeometry& g) {
  return {.samples = g.samples,
          .height = g.output_height,
          .width = g.output_width,
          .channels = g.outputs,
          .output_height = g.height,
          .output_width = g.width,
          .outputs = g.channels,
          .kernel = g.kernel,
          .before = g.kernel - 1 - g.before};
}

cudaError_t TurnWeights(const ConvolutionGeometry& geometry, const float* weights, float* turned,
                        cudaStream_t stream) {
  return LaunchFake(stream, [=, g = geometry] {
    const int64_t taps = g.kernel * g.kernel;
    const int64_t count = g.terms() * g.outputs;
    const auto from = Reachable(weights, count);
    const auto target = Reachable(turned, count);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t output = i % g.outputs, channel = i / g.outputs % g.channels,
                    tap = i / g.outputs / g.channels;
      target[((taps - 1 - tap) * g.outputs + output) * g.channels + channel] = from[i];
    }
  });
}

cudaError_t ConvolutionForward(const ConvolutionGeometry& geometry, Math, const float* input,
                               const float* weights, const float* bias, bool relu, float* output,
                               cudaStream_t stream) {
  if (IsTooLarge(geometry)) return cudaErrorInvalidValue;
  return LaunchFake(stream, [=, g = geometry] {
    const std::vector<float> values = Convolve(g, input, weights, bias);
    std::transform(values.begin(), values.end(), Reachable(output, g.pixels() * g.outputs).begin(),
                   [&](float value) { return relu && value < 0 ? 0 : value; });
  });
}

bool PoolsAtOnce(const ConvolutionGeometry& g, int64_t window) {
  return 64 % (window * window) == 0 && g.output_height % window == 0 && g.output_width % window == 0;
}

cudaError_t ConvolutionPoolForward(const ConvolutionGeometry& geometry, Math, const float* input,
                                   const float* weights, const float* bias, int64_t window, bool relu,
                                   float* output, uint8_t* winners, cudaStream_t stream) {
  if (IsTooLarge(geometry) || !PoolsAtOnce(geometry, window)) return cudaErrorInvalidValue;
  if (geometry.pixels() == 0) return cudaSuccess;
  return LaunchFake(stream, [=, g = geometry] {
    const PoolGeometry pool{.samples = g.samples,
                            .height = g.output_height,
                            .width = g.output_width,
                            .channels = g.outputs,
                            .window = window,
                            .relu = relu};
    std::vector<uint8_t> unwanted(winners == nullptr ? pool.output_count() : 0);
    muster::MaxPoolForward(ShapeOf(pool), g.samples, Convolve(g, input, weights, bias),
                           Reachable(output, pool.output_count()),
                           winners == nullptr ? unwanted : Reachable(winners, pool.output_count()));
  });
}

int64_t ConvolutionScratchSize(const ConvolutionGeometry& g) { return (g.terms() + 1) * g.outputs; }

cudaError_t ConvolutionParameterGradient(const ConvolutionGeometry& geometry, Math, const float* input,
                                         const float* output_gradient, float* scratch,
                                         float* weights_gradient, float* bias_gradient, cudaStream_t stream) {
  if (IsTooLarge(geometry)) return cudaErrorInvalidValue;
  return LaunchFake(stream, [=, g = geometry] {
    const auto images = Reachable(input, g.samples * InputSize(g));
    const auto gradients = Reachable(output_gradient, g.pixels() * g.outputs);
    const auto sums = Reachable(scratch, ConvolutionScratchSize(g));
    const int64_t weights_count = g.terms() * g.outputs;
    std::fill(sums.begin(), sums.end(), 0.0f);
    for (int64_t sample = 0; sample < g.samples; ++sample) {
      const std::vector<float> patches = Patches(g, images.subspan(sample * InputSize(g), InputSize(g)));
      MultiplyOnHost({.transpose_a = true, .m = g.terms(), .n = g.outputs, .k = OutputPixels(g)},
                     patches.data(), gradients.data() + sample * OutputPixels(g) * g.outputs, 1, scratch);
    }
    for (size_t i = 0; i < gradients.size(); ++i) sums[weights_count + i % g.outputs] += gradients[i];
    std::copy_n(sums.begin(), weights_count, Reachable(weights_gradient, weights_count).begin());
    std::copy_n(sums.begin() + weights_count, g.outputs, Reachable(bias_gradient, g.outputs).begin());
  });
}

// max_pool.h

cudaError_t MaxPoolForward(const PoolGeometry& geometry, const float* input, float* output, uint8_t* winners,
                           cudaStream_t stream) {
  if (geometry.input_count() > INT_MAX) return cudaErrorInvalidValue;
  if (geometry.output_count() == 0) return cudaSuccess;
  return LaunchFake(stream, [=, g = geometry] {
    muster::MaxPoolForward(ShapeOf(g), g.samples, Reachable(input, g.input_count()),
                           Reachable(output, g.output_count()), Reachable(winners, g.output_count()));
  });
}

cudaError_t MaxPoolBackward(const PoolGeometry& geometry, const float* output_gradient,
                            const uint8_t* winners, float* input_gradient, cudaStream_t stream) {
  if (geometry.input_count() > INT_MAX) return cudaErrorInvalidValue;
  if (geometry.input_count() == 0) return cudaSuccess;
  return LaunchFake(stream, [=, g = geometry] {
    const auto gradient = Reachable(input_gradient, g.input_count());
    if (g.output_count() == 0) return std::fill(gradient.begin(), gradient.end(), 0.0f);
    muster::MaxPoolBackward(ShapeOf(g), g.samples, Reachable(output_gradient, g.output_count()),
                            Reachable(winners, g.output_count()), gradient);
  });
}

}  // namespace muster::cuda
