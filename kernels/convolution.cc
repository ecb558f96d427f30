#include "kernels/convolution.h"

#include <omp.h>

#include <algorithm>
#include <exception>
#include <vector>

#include "base/status.h"
#include "kernels/aligned_floats.h"
#include "kernels/convolution_gradients.h"
#include "kernels/max_pool.h"
#include "kernels/threads.h"

namespace muster {
namespace {

// Convolved values of a group: with what they are made of they fit into a second-level cache of 512 KiB.
constexpr int64_t kGroupFloats = 64 << 10;
constexpr int64_t kLargestGroup = 16;

int64_t LargestGroup(const ConvolutionShape& shape) {
  const int64_t floats = shape.convolved_height() * shape.convolved_width() * shape.outputs;
  return std::clamp<int64_t>(kGroupFloats / floats, 1, kLargestGroup);
}

// Samples of a batch that pass through together, and the thread that takes them.
struct Group {
  int thread = 0;
  int64_t first = 0;
  int64_t samples = 0;
};

}  // namespace

class Convolution::State {
 public:
  State(const ConvolutionShape& shape, int64_t largest_batch)
      : shape_(shape),
        largest_batch_(largest_batch),
        largest_group_(LargestGroup(shape)),
        direct_(MakeDirectConvolution(shape, largest_group_)),
        winograd_(MakeWinogradGradients(shape, largest_group_)),
        gradients_(winograd_ ? *winograd_ : *direct_),
        forward_pool_(PoolOf(shape, direct_->convolved_block())),
        backward_pool_(PoolOf(shape, gradients_.convolved_block())),
        winners_(largest_batch * shape.output_size()) {}

  void Forward(int64_t samples, std::span<const float> input, std::span<const float> weights,
               std::span<const float> bias, std::span<float> output) {
    CheckSizes(samples, input.size(), weights.size(), bias.size(), output.size());
    if (samples == 0) return;
    direct_->SetForwardWeights(weights);
    ForEachGroup(samples, *direct_, [&](const Group& group) {
      const std::span<float> convolved = Convolved(forward_pool_, group);
      direct_->Forward(group.thread, group.samples, InputPart(input, group), bias.data(), convolved.data());
      MaxPoolForward(forward_pool_, group.samples, convolved, OutputPart(output, group),
                     OutputPart(std::span(winners_), group));
    });
  }

  void Backward(int64_t samples, std::span<const float> input, std::span<const float> weights,
                std::span<const float> output_gradient, std::span<float> weights_gradient,
                std::span<float> bias_gradient, std::span<float> input_gradient) {
    CheckSizes(samples, input.size(), weights.size(), bias_gradient.size(), output_gradient.size());
    MUSTER_CHECK(weights_gradient.size() == weights.size());
    MUSTER_CHECK(input_gradient.empty() || input_gradient.size() == input.size());
    if (samples == 0) {
      std::fill(weights_gradient.begin(), weights_gradient.end(), 0.0f);
      std::fill(bias_gradient.begin(), bias_gradient.end(), 0.0f);
      return;
    }
    if (!input_gradient.empty()) gradients_.SetWeights(weights);
    ForEachGroup(samples, gradients_, [&](const Group& group) {
      const std::span<float> convolved = Convolved(backward_pool_, group);
      MaxPoolBackward(backward_pool_, group.samples, OutputPart(output_gradient, group),
                      OutputPart(std::span<const uint8_t>(winners_), group), convolved);
      gradients_.AddParameterGradient(group.thread, group.samples, InputPart(input, group), convolved.data());
      if (input_gradient.empty()) return;
      gradients_.InputGradient(group.thread, group.samples, convolved.data(),
                               InputPart(input_gradient, group));
    });
    gradients_.TakeParameterGradient(weights_gradient, bias_gradient);
  }

 private:
  void CheckSizes(int64_t samples, size_t input, size_t weights, size_t bias, size_t output) const {
    MUSTER_CHECK(samples >= 0 && samples <= largest_batch_);
    MUSTER_CHECK(static_cast<int64_t>(input) == samples * shape_.input_size() &&
                 static_cast<int64_t>(output) == samples * shape_.output_size());
    MUSTER_CHECK(static_cast<int64_t>(weights) == shape_.weights_size() &&
                 static_cast<int64_t>(bias) == shape_.outputs);
  }

  static MaxPoolShape PoolOf(const ConvolutionShape& shape, int64_t convolved_block) {
    return {.height = shape.convolved_height(),
            .width = shape.convolved_width(),
            .channels = shape.outputs,
            .window = shape.pool_window,
            .activation = shape.activation,
            .input_block = convolved_block};
  }

  // Calls work(group) on several threads, for which `method` is prepared: the groups differ by at most one
  // sample, and which thread takes which depends on the number of samples and threads alone.
  template <typename Work>
  void ForEachGroup(int64_t samples, ConvolutionGradients& method, const Work& work) {
    const int threads = static_cast<int>(std::min<int64_t>(omp_get_max_threads(), samples));
    const int64_t rounds = (samples + threads * largest_group_ - 1) / (threads * largest_group_);
    const int64_t groups = std::min(samples, threads * rounds);
    method.Prepare(threads, samples / groups);
    if (samples % groups != 0) method.Prepare(threads, samples / groups + 1);
    while (static_cast<int>(convolved_.size()) < threads) {
      convolved_.emplace_back(largest_group_ *
                              std::max(forward_pool_.input_size(), backward_pool_.input_size()));
    }
    std::exception_ptr failure;  // of any of them; none may leave the region
#pragma omp parallel num_threads(threads)
    try {
      const int64_t team = omp_get_num_threads();
      const int thread = omp_get_thread_num();
      for (int64_t g = groups * thread / team; g < groups * (thread + 1) / team; ++g) {
        const int64_t first = samples * g / groups, end = samples * (g + 1) / groups;
        work(Group{.thread = thread, .first = first, .samples = end - first});
      }
    } catch (...) {
#pragma omp critical
      failure = std::current_exception();
    }
    if (failure) std::rethrow_exception(failure);
  }

  std::span<float> Convolved(const MaxPoolShape& pool, const Group& group) {
    return {convolved_[group.thread].data(), static_cast<size_t>(group.samples * pool.input_size())};
  }

  template <typename T>
  T* InputPart(std::span<T> batch, const Group& group) const {
    return batch.data() + group.first * shape_.input_size();
  }

  template <typename T>
  std::span<T> OutputPart(std::span<T> batch, const Group& group) const {
    return batch.subspan(group.first * shape_.output_size(), group.samples * shape_.output_size());
  }

  const ConvolutionShape shape_;
  const int64_t largest_batch_;
  const int64_t largest_group_;
  const std::unique_ptr<DirectConvolution> direct_;
  const std::unique_ptr<ConvolutionGradients> winograd_;
  ConvolutionGradients& gradients_;  // one of them
  const MaxPoolShape forward_pool_, backward_pool_;
  std::vector<AlignedFloats> convolved_;  // of each thread's group: the values, later their gradient
  std::vector<uint8_t> winners_;          // of the last forward pass: [largest_batch, output_size]
};

Convolution::Convolution(const ConvolutionShape& shape, int64_t largest_batch) {
  MUSTER_CHECK(shape.height >= 1 && shape.width >= 1 && shape.channels >= 1 && shape.outputs >= 1 &&
               shape.kernel >= 1 && shape.pool_window >= 1 && largest_batch >= 0);
  MUSTER_CHECK(shape.convolved_height() >= shape.pool_window && shape.convolved_width() >= shape.pool_window);
  state_ = std::make_unique<State>(shape, largest_batch);
}

Convolution::~Convolution() = default;

void Convolution::Forward(int64_t samples, std::span<const float> input, std::span<const float> weights,
                          std::span<const float> bias, std::span<float> output) {
  state_->Forward(samples, input, weights, bias, output);
}

void Convolution::Backward(int64_t samples, std::span<const float> input, std::span<const float> weights,
                           std::span<const float> output_gradient, std::span<float> weights_gradient,
                           std::span<float> bias_gradient, std::span<float> input_gradient) {
  state_->Backward(samples, input, weights, output_gradient, weights_gradient, bias_gradient, input_gradient);
}

}  // namespace muster
