#include <algorithm>
#include <vector>

#include "base/status.h"
#include "kernels/aligned_floats.h"
#include "kernels/convolution_gradients.h"
#include "kernels/winograd.h"

namespace muster {
namespace {

// With fewer the transforms, which cost as much for each channel, weigh more than the products they save.
constexpr int64_t kMinChannels = 8;

class WinogradGradients final : public ConvolutionGradients {
 public:
  WinogradGradients(const ConvolutionShape& shape, int64_t largest_group)
      : shape_(shape),
        largest_group_(largest_group),
        forward_({.height = shape.height,
                  .width = shape.width,
                  .channels = shape.channels,
                  .outputs = shape.outputs,
                  .zeros = shape.padding == Padding::kSame ? 2 : 0}),
        backward_({.height = shape.convolved_height(),
                   .width = shape.convolved_width(),
                   .channels = shape.outputs,
                   .outputs = shape.channels,
                   .zeros = shape.padding == Padding::kSame ? 2 : 4}),
        weights_(backward_.weight_points_size()) {}

  int64_t convolved_block() const override { return 0; }

  void Prepare(int threads, int64_t) override {
    while (static_cast<int>(workers_.size()) < threads) {
      workers_.push_back({.forward = {forward_, largest_group_},
                          .backward = {backward_, largest_group_},
                          .weights_sum = AlignedFloats(forward_.weight_points_size()),
                          .bias_sum = AlignedFloats(shape_.outputs)});
    }
  }

  void SetWeights(std::span<const float> weights) override {
    backward_.TransformTurnedWeights(weights, weights_.data());
  }

  void AddParameterGradient(int thread, int64_t samples, const float* input,
                            const float* convolved_gradient) override {
    Worker& worker = workers_[thread];
    forward_.AddGradient(samples, input, convolved_gradient, worker.weights_sum.data(), worker.forward);
    const int64_t pixels = samples * shape_.convolved_height() * shape_.convolved_width();
    float* const sum = worker.bias_sum.data();
    for (int64_t p = 0; p < pixels; ++p) {
      for (int64_t o = 0; o < shape_.outputs; ++o) sum[o] += convolved_gradient[p * shape_.outputs + o];
    }
  }

  void InputGradient(int thread, int64_t samples, const float* convolved_gradient,
                     float* input_gradient) override {
    backward_.Convolve(samples, convolved_gradient, weights_.data(), input_gradient,
                       workers_[thread].backward);
  }

  void TakeParameterGradient(std::span<float> weights_gradient, std::span<float> bias_gradient) override {
    Worker& total = workers_.front();
    for (size_t i = 1; i < workers_.size(); ++i) {
      AddAndClear(forward_.weight_points_size(), workers_[i].weights_sum.data(), total.weights_sum.data());
      AddAndClear(shape_.outputs, workers_[i].bias_sum.data(), total.bias_sum.data());
    }
    forward_.TransformGradient(total.weights_sum.data(), weights_gradient);
    std::copy_n(total.bias_sum.data(), shape_.outputs, bias_gradient.begin());
    std::fill_n(total.weights_sum.data(), forward_.weight_points_size(), 0.0f);
    std::fill_n(total.bias_sum.data(), shape_.outputs, 0.0f);
  }

 private:
  // One thread's memory.
  struct Worker {
    Winograd::Scratch forward, backward;
    AlignedFloats weights_sum;  // points
    AlignedFloats bias_sum;
  };

  static void AddAndClear(int64_t size, float* from, float* to) {
    for (int64_t i = 0; i < size; ++i) {
      to[i] += from[i];
      from[i] = 0;
    }
  }

  const ConvolutionShape shape_;
  const int64_t largest_group_;
  const Winograd forward_;
  const Winograd backward_;  // from the gradient of the convolved image to that of the input
  AlignedFloats weights_;    // points
  std::vector<Worker> workers_;
};

}  // namespace

std::unique_ptr<ConvolutionGradients> MakeWinogradGradients(const ConvolutionShape& shape,
                                                            int64_t largest_group) {
  if (shape.kernel != Winograd::kKernel || shape.channels < kMinChannels || shape.outputs < kMinChannels) {
    return nullptr;
  }
  return std::make_unique<WinogradGradients>(shape, largest_group);
}

}  // namespace muster
