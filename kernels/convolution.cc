#include "kernels/convolution.h"

#include <omp.h>

#include <algorithm>
#include <new>
#include <optional>
#include <unordered_map>
#include <vector>

#include "kernels/aligned_floats.h"
#include "kernels/convolution_plan.h"
#include "kernels/max_pool.h"

namespace muster {
namespace {

using dnnl::memory;

// Convolved values of a group: with what they are made of they fit into a second-level cache of 512 KiB.
constexpr int64_t kGroupFloats = 64 << 10;
constexpr int64_t kLargestGroup = 16;

// oneDNN throws; what it throws because of our mistakes ends here.
template <typename Work>
auto CallDnnl(const Work& work) {
  try {
    return work();
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_out_of_memory) throw std::bad_alloc();
    MUSTER_CHECK(false, absl::StrFormat("oneDNN: %s (status %d)", error.what(), error.status));
  }
}

void Add(const float* from, int64_t size, float* to) {
  for (int64_t i = 0; i < size; ++i) to[i] += from[i];
}

// Samples of a batch that pass through together.
struct Group {
  int64_t first = 0;
  int64_t samples = 0;
};

using Arguments = std::unordered_map<int, memory>;

// What one thread gives to the operations on groups of one size.
struct Calls {
  Arguments forward, parameters, input;
};

// One thread's buffers.
struct Worker {
  dnnl::stream stream;
  AlignedFloats convolved;  // of a group: the values, later their gradient
  AlignedFloats input, input_gradient;
  AlignedFloats weights_gradient, bias_gradient;  // of a group
  AlignedFloats weights_sum, bias_sum;
  std::vector<std::optional<Calls>> calls;  // by the samples of the group
  bool has_sum = false;
};

}  // namespace

class Convolution::State {
 public:
  State(const ConvolutionShape& shape, int64_t largest_batch)
      : shape_(shape),
        pool_{.height = shape.convolved_height(),
              .width = shape.convolved_width(),
              .channels = shape.outputs,
              .window = shape.pool_window,
              .activation = shape.activation},
        largest_batch_(largest_batch),
        engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        planner_(shape, engine_),
        winners_(largest_batch * shape.output_size()) {
    const onednn::OneThread one_thread;
    const int64_t floats = shape.convolved_height() * shape.convolved_width() * shape.outputs;
    largest_group_ = std::clamp<int64_t>(kGroupFloats / floats, 1, kLargestGroup);
    primitives_.resize(largest_group_ + 1);
    blocks_ = planner_.ChooseBlocks(largest_group_);
    pool_.input_block = blocks_.convolved;
    const onednn::Plan plan = planner_.Make(largest_group_, blocks_, planner_.AnyWeights());
    weights_ = {plan.forward.weights_desc(), plan.parameters.diff_weights_desc(), plan.input.weights_desc()};
    forward_weights_ = memory(weights_.forward, engine_);
    backward_weights_ = memory(weights_.backward, engine_);
    user_weights_ = memory(planner_.UserWeights(), engine_, nullptr);
    gradient_sum_ = memory(weights_.gradient, engine_, nullptr);
    pack_forward_.emplace(user_weights_, forward_weights_);
    pack_backward_.emplace(user_weights_, backward_weights_);
    unpack_gradient_.emplace(gradient_sum_, user_weights_);
  }

  void Forward(int64_t samples, std::span<const float> input, std::span<const float> weights,
               std::span<const float> bias, std::span<float> output) {
    CheckSizes(samples, input.size(), weights.size(), bias.size(), output.size());
    if (samples == 0) return;
    user_weights_.set_data_handle(const_cast<float*>(weights.data()));
    pack_forward_->Run(stream_);
    ForEachGroup(samples, [&](Worker& worker, const Group& group) {
      Arguments& arguments = worker.calls[group.samples]->forward;
      ReadInput(worker, group, input, arguments.at(DNNL_ARG_SRC));
      arguments.at(DNNL_ARG_BIAS).set_data_handle(const_cast<float*>(bias.data()));
      primitives_[group.samples]->forward.execute(worker.stream, arguments);
      MaxPoolForward(pool_, group.samples, Convolved(worker, group), OutputPart(output, group),
                     OutputPart(std::span(winners_), group));
    });
  }

  void Backward(int64_t samples, std::span<const float> input, std::span<const float> weights,
                std::span<const float> output_gradient, std::span<float> weights_gradient,
                std::span<float> bias_gradient, std::span<float> input_gradient) {
    CheckSizes(samples, input.size(), weights.size(), bias_gradient.size(), output_gradient.size());
    MUSTER_CHECK(weights_gradient.size() == weights.size());
    MUSTER_CHECK(input_gradient.empty() || input_gradient.size() == input.size());
    std::fill(weights_gradient.begin(), weights_gradient.end(), 0.0f);
    std::fill(bias_gradient.begin(), bias_gradient.end(), 0.0f);
    if (samples == 0) return;
    if (!input_gradient.empty()) {
      user_weights_.set_data_handle(const_cast<float*>(weights.data()));
      pack_backward_->Run(stream_);
    }
    ForEachGroup(samples, [&](Worker& worker, const Group& group) {
      MaxPoolBackward(pool_, group.samples, OutputPart(output_gradient, group),
                      OutputPart(std::span<const uint8_t>(winners_), group), Convolved(worker, group));
      AddParameterGradient(worker, group, input);
      if (!input_gradient.empty()) WriteInputGradient(worker, group, input_gradient);
    });
    SumParameterGradient(weights_gradient, bias_gradient);
  }

 private:
  void CheckSizes(int64_t samples, size_t input, size_t weights, size_t bias, size_t output) const {
    MUSTER_CHECK(samples >= 0 && samples <= largest_batch_);
    MUSTER_CHECK(static_cast<int64_t>(input) == samples * shape_.input_size() &&
                 static_cast<int64_t>(output) == samples * shape_.output_size());
    MUSTER_CHECK(static_cast<int64_t>(weights) == shape_.weights_size() &&
                 static_cast<int64_t>(bias) == shape_.outputs);
  }

  // Calls work(worker, group) on several threads: the groups differ by at most one sample, and which thread
  // takes which depends on the number of samples and threads alone.
  template <typename Work>
  void ForEachGroup(int64_t samples, const Work& work) {
    const int threads = static_cast<int>(std::min<int64_t>(omp_get_max_threads(), samples));
    const int64_t rounds = (samples + threads * largest_group_ - 1) / (threads * largest_group_);
    const int64_t groups = std::min(samples, threads * rounds);
    Prepare(threads, samples / groups);
    if (samples % groups != 0) Prepare(threads, samples / groups + 1);
#pragma omp parallel num_threads(threads)
    {
      const onednn::OneThread one_thread;
      const int64_t team = omp_get_num_threads(), index = omp_get_thread_num();
      for (int64_t g = groups * index / team; g < groups * (index + 1) / team; ++g) {
        const int64_t first = samples * g / groups, end = samples * (g + 1) / groups;
        work(*workers_[index], Group{.first = first, .samples = end - first});
      }
    }
  }

  // Makes what the threads need for groups of this size.
  void Prepare(int threads, int64_t samples) {
    const onednn::OneThread one_thread;
    std::optional<onednn::Primitives>& primitives = primitives_[samples];
    if (!primitives) primitives.emplace(planner_.Make(samples, blocks_, weights_));
    while (static_cast<int>(workers_.size()) < threads) workers_.push_back(MakeWorker());
    for (int i = 0; i < threads; ++i) {
      std::optional<Calls>& calls = workers_[i]->calls[samples];
      if (!calls) calls = MakeCalls(*workers_[i], primitives->plan);
    }
  }

  std::unique_ptr<Worker> MakeWorker() const {
    const auto floats = [](const memory::desc& desc) {
      return AlignedFloats(static_cast<int64_t>(desc.get_size() / sizeof(float)));
    };
    const auto image = planner_.Input(largest_group_, blocks_);
    const auto convolved = planner_.Convolved(largest_group_, blocks_);
    const bool blocked = blocks_.input != 0;
    return std::make_unique<Worker>(Worker{.stream = dnnl::stream(engine_),
                                           .convolved = floats(convolved),
                                           .input = blocked ? floats(image) : AlignedFloats(0),
                                           .input_gradient = blocked ? floats(image) : AlignedFloats(0),
                                           .weights_gradient = floats(weights_.gradient),
                                           .bias_gradient = AlignedFloats(shape_.outputs),
                                           .weights_sum = floats(weights_.gradient),
                                           .bias_sum = AlignedFloats(shape_.outputs),
                                           .calls = std::vector<std::optional<Calls>>(largest_group_ + 1)});
  }

  Calls MakeCalls(Worker& worker, const onednn::Plan& plan) const {
    const auto scratch = [&](const memory::desc& desc) { return memory(desc, engine_); };
    const memory convolved(plan.forward.dst_desc(), engine_, worker.convolved.data());
    return {
        .forward = {{DNNL_ARG_SRC, {plan.forward.src_desc(), engine_, worker.input.data()}},
                    {DNNL_ARG_WEIGHTS, forward_weights_},
                    {DNNL_ARG_BIAS, {plan.forward.bias_desc(), engine_, nullptr}},
                    {DNNL_ARG_DST, convolved},
                    {DNNL_ARG_SCRATCHPAD, scratch(plan.forward.scratchpad_desc())}},
        .parameters = {{DNNL_ARG_SRC, {plan.parameters.src_desc(), engine_, worker.input.data()}},
                       {DNNL_ARG_DIFF_DST, convolved},
                       {DNNL_ARG_DIFF_WEIGHTS,
                        {plan.parameters.diff_weights_desc(), engine_, worker.weights_gradient.data()}},
                       {DNNL_ARG_DIFF_BIAS,
                        {plan.parameters.diff_bias_desc(), engine_, worker.bias_gradient.data()}},
                       {DNNL_ARG_SCRATCHPAD, scratch(plan.parameters.scratchpad_desc())}},
        .input = {{DNNL_ARG_DIFF_SRC, {plan.input.diff_src_desc(), engine_, worker.input_gradient.data()}},
                  {DNNL_ARG_WEIGHTS, backward_weights_},
                  {DNNL_ARG_DIFF_DST, convolved},
                  {DNNL_ARG_SCRATCHPAD, scratch(plan.input.scratchpad_desc())}}};
  }

  int64_t Pixels() const { return shape_.height * shape_.width; }
  int64_t BlockedSize() const {  // floats of one sample of the input in blocks
    return Pixels() * ((shape_.channels + blocks_.input - 1) / blocks_.input * blocks_.input);
  }

  std::span<float> Convolved(Worker& worker, const Group& group) const {
    return {worker.convolved.data(), static_cast<size_t>(group.samples * pool_.input_size())};
  }

  template <typename T>
  std::span<T> OutputPart(std::span<T> batch, const Group& group) const {
    return batch.subspan(group.first * shape_.output_size(), group.samples * shape_.output_size());
  }

  // Makes `source` the group's samples.
  void ReadInput(Worker& worker, const Group& group, std::span<const float> input, memory& source) const {
    const float* const first = input.data() + group.first * shape_.input_size();
    if (blocks_.input == 0) return source.set_data_handle(const_cast<float*>(first));
    for (int64_t i = 0; i < group.samples; ++i) {
      onednn::ToBlocks(blocks_.input, Pixels(), shape_.channels, first + i * shape_.input_size(),
                       worker.input.data() + i * BlockedSize());
    }
  }

  void AddParameterGradient(Worker& worker, const Group& group, std::span<const float> input) const {
    Arguments& arguments = worker.calls[group.samples]->parameters;
    ReadInput(worker, group, input, arguments.at(DNNL_ARG_SRC));
    primitives_[group.samples]->parameters.execute(worker.stream, arguments);
    const int64_t size = weights_.gradient.get_size() / sizeof(float);
    if (worker.has_sum) {
      Add(worker.weights_gradient.data(), size, worker.weights_sum.data());
      Add(worker.bias_gradient.data(), shape_.outputs, worker.bias_sum.data());
    } else {
      std::copy_n(worker.weights_gradient.data(), size, worker.weights_sum.data());
      std::copy_n(worker.bias_gradient.data(), shape_.outputs, worker.bias_sum.data());
    }
    worker.has_sum = true;
  }

  void WriteInputGradient(Worker& worker, const Group& group, std::span<float> input_gradient) const {
    Arguments& arguments = worker.calls[group.samples]->input;
    float* const first = input_gradient.data() + group.first * shape_.input_size();
    if (blocks_.input == 0) arguments.at(DNNL_ARG_DIFF_SRC).set_data_handle(first);
    primitives_[group.samples]->input.execute(worker.stream, arguments);
    if (blocks_.input == 0) return;
    for (int64_t i = 0; i < group.samples; ++i) {
      onednn::FromBlocks(blocks_.input, Pixels(), shape_.channels,
                         worker.input_gradient.data() + i * BlockedSize(), first + i * shape_.input_size());
    }
  }

  // Adds up what the threads have, in their order.
  void SumParameterGradient(std::span<float> weights_gradient, std::span<float> bias_gradient) {
    Worker& total = *workers_.front();
    for (const std::unique_ptr<Worker>& worker : workers_) {
      if (worker.get() != &total && worker->has_sum) {
        Add(worker->weights_sum.data(), weights_.gradient.get_size() / sizeof(float),
            total.weights_sum.data());
        Add(worker->bias_sum.data(), shape_.outputs, total.bias_sum.data());
      }
      worker->has_sum = false;
    }
    gradient_sum_.set_data_handle(total.weights_sum.data());
    user_weights_.set_data_handle(weights_gradient.data());
    unpack_gradient_->Run(stream_);
    std::copy_n(total.bias_sum.data(), shape_.outputs, bias_gradient.begin());
  }

  const ConvolutionShape shape_;
  MaxPoolShape pool_;
  const int64_t largest_batch_;
  int64_t largest_group_ = 0;
  const dnnl::engine engine_;
  dnnl::stream stream_;
  const onednn::Planner planner_;
  onednn::Blocks blocks_;
  onednn::WeightDescs weights_;
  memory forward_weights_, backward_weights_;
  memory user_weights_, gradient_sum_;  // views
  std::optional<onednn::Reordering> pack_forward_, pack_backward_, unpack_gradient_;
  std::vector<std::optional<onednn::Primitives>> primitives_;  // by the samples of the group
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<uint8_t> winners_;  // of the last forward pass: [largest_batch, output_size]
};

Convolution::Convolution(const ConvolutionShape& shape, int64_t largest_batch) {
  MUSTER_CHECK(shape.height >= 1 && shape.width >= 1 && shape.channels >= 1 && shape.outputs >= 1 &&
               shape.kernel >= 1 && shape.pool_window >= 1 && largest_batch >= 0);
  MUSTER_CHECK(shape.convolved_height() >= shape.pool_window && shape.convolved_width() >= shape.pool_window);
  state_ = CallDnnl([&] { return std::make_unique<State>(shape, largest_batch); });
}

Convolution::~Convolution() = default;

void Convolution::Forward(int64_t samples, std::span<const float> input, std::span<const float> weights,
                          std::span<const float> bias, std::span<float> output) {
  CallDnnl([&] { state_->Forward(samples, input, weights, bias, output); });
}

void Convolution::Backward(int64_t samples, std::span<const float> input, std::span<const float> weights,
                           std::span<const float> output_gradient, std::span<float> weights_gradient,
                           std::span<float> bias_gradient, std::span<float> input_gradient) {
  CallDnnl([&] {
    state_->Backward(samples, input, weights, output_gradient, weights_gradient, bias_gradient,
                     input_gradient);
  });
}

}  // namespace muster
