#include <absl/strings/str_format.h>

#include <algorithm>
#include <new>
#include <optional>
#include <vector>

#include "base/status.h"
#include "kernels/aligned_floats.h"
#include "kernels/convolution_gradients.h"
#include "kernels/convolution_plan.h"

namespace muster {
namespace {

using dnnl::memory;

// Runs `work` with oneDNN on this thread alone. oneDNN throws; what it throws because of our mistakes ends
// here.
template <typename Work>
auto CallDnnl(const Work& work) {
  const onednn::OneThread one_thread;
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

// What one thread gives to the operations on groups of one size.
struct Calls {
  onednn::Arguments forward, parameters, input;
};

// One thread's buffers.
struct Worker {
  dnnl::stream stream;
  AlignedFloats input, input_gradient;            // of a group, in blocks
  AlignedFloats weights_gradient, bias_gradient;  // of a group
  AlignedFloats weights_sum, bias_sum;
  std::vector<std::optional<Calls>> calls;  // by the samples of the group
  bool has_sum = false;
};

// oneDNN takes what it reads and what it writes through one kind of pointer.
void Point(memory& argument, const float* floats) { argument.set_data_handle(const_cast<float*>(floats)); }

class OneDnnConvolution final : public DirectConvolution {
 public:
  OneDnnConvolution(const ConvolutionShape& shape, int64_t largest_group)
      : shape_(shape),
        largest_group_(largest_group),
        engine_(dnnl::engine::kind::cpu, 0),
        stream_(engine_),
        planner_(shape, engine_),
        blocks_(planner_.ChooseBlocks(largest_group)),
        primitives_(largest_group + 1) {
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

  int64_t convolved_block() const override { return blocks_.convolved; }

  void Prepare(int threads, int64_t samples) override {
    CallDnnl([&] {
      std::optional<onednn::Primitives>& primitives = primitives_[samples];
      if (!primitives) primitives.emplace(planner_.Make(samples, blocks_, weights_));
      while (static_cast<int>(workers_.size()) < threads) workers_.push_back(MakeWorker());
      for (int i = 0; i < threads; ++i) {
        std::optional<Calls>& calls = workers_[i]->calls[samples];
        if (!calls) calls = MakeCalls(*workers_[i], primitives->plan);
      }
    });
  }

  void SetForwardWeights(std::span<const float> weights) override {
    Point(user_weights_, weights.data());
    CallDnnl([&] { pack_forward_->Run(stream_); });
  }

  void SetWeights(std::span<const float> weights) override {
    Point(user_weights_, weights.data());
    CallDnnl([&] { pack_backward_->Run(stream_); });
  }

  void Forward(int thread, int64_t samples, const float* input, const float* bias,
               float* convolved) override {
    Worker& worker = *workers_[thread];
    onednn::Arguments& arguments = worker.calls[samples]->forward;
    ReadInput(worker, samples, input, arguments.at(DNNL_ARG_SRC));
    Point(arguments.at(DNNL_ARG_BIAS), bias);
    Point(arguments.at(DNNL_ARG_DST), convolved);
    CallDnnl([&] { onednn::Execute(primitives_[samples]->forward, worker.stream, arguments); });
  }

  void AddParameterGradient(int thread, int64_t samples, const float* input,
                            const float* convolved_gradient) override {
    Worker& worker = *workers_[thread];
    onednn::Arguments& arguments = worker.calls[samples]->parameters;
    ReadInput(worker, samples, input, arguments.at(DNNL_ARG_SRC));
    Point(arguments.at(DNNL_ARG_DIFF_DST), convolved_gradient);
    CallDnnl([&] { onednn::Execute(primitives_[samples]->parameters, worker.stream, arguments); });
    if (worker.has_sum) {
      Add(worker.weights_gradient.data(), WeightFloats(), worker.weights_sum.data());
      Add(worker.bias_gradient.data(), shape_.outputs, worker.bias_sum.data());
    } else {
      std::copy_n(worker.weights_gradient.data(), WeightFloats(), worker.weights_sum.data());
      std::copy_n(worker.bias_gradient.data(), shape_.outputs, worker.bias_sum.data());
    }
    worker.has_sum = true;
  }

  void InputGradient(int thread, int64_t samples, const float* convolved_gradient,
                     float* input_gradient) override {
    Worker& worker = *workers_[thread];
    onednn::Arguments& arguments = worker.calls[samples]->input;
    Point(arguments.at(DNNL_ARG_DIFF_DST), convolved_gradient);
    if (blocks_.input == 0) Point(arguments.at(DNNL_ARG_DIFF_SRC), input_gradient);
    CallDnnl([&] { onednn::Execute(primitives_[samples]->input, worker.stream, arguments); });
    if (blocks_.input == 0) return;
    for (int64_t i = 0; i < samples; ++i) {
      onednn::FromBlocks(blocks_.input, Pixels(), shape_.channels,
                         worker.input_gradient.data() + i * BlockedSize(),
                         input_gradient + i * shape_.input_size());
    }
  }

  void TakeParameterGradient(std::span<float> weights_gradient, std::span<float> bias_gradient) override {
    Worker& total = *workers_.front();
    for (const std::unique_ptr<Worker>& worker : workers_) {
      if (worker.get() != &total && worker->has_sum) {
        Add(worker->weights_sum.data(), WeightFloats(), total.weights_sum.data());
        Add(worker->bias_sum.data(), shape_.outputs, total.bias_sum.data());
      }
      worker->has_sum = false;
    }
    Point(gradient_sum_, total.weights_sum.data());
    Point(user_weights_, weights_gradient.data());
    CallDnnl([&] { unpack_gradient_->Run(stream_); });
    std::copy_n(total.bias_sum.data(), shape_.outputs, bias_gradient.begin());
  }

 private:
  std::unique_ptr<Worker> MakeWorker() const {
    const auto floats = [](const memory::desc& desc) {
      return AlignedFloats(static_cast<int64_t>(desc.get_size() / sizeof(float)));
    };
    const auto image = planner_.Input(largest_group_, blocks_);
    const bool blocked = blocks_.input != 0;
    return std::make_unique<Worker>(Worker{.stream = dnnl::stream(engine_),
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
    const auto convolved = [&] { return memory(plan.forward.dst_desc(), engine_, nullptr); };
    return {
        .forward = {{DNNL_ARG_SRC, {plan.forward.src_desc(), engine_, worker.input.data()}},
                    {DNNL_ARG_WEIGHTS, forward_weights_},
                    {DNNL_ARG_BIAS, {plan.forward.bias_desc(), engine_, nullptr}},
                    {DNNL_ARG_DST, convolved()},
                    {DNNL_ARG_SCRATCHPAD, scratch(plan.forward.scratchpad_desc())}},
        .parameters = {{DNNL_ARG_SRC, {plan.parameters.src_desc(), engine_, worker.input.data()}},
                       {DNNL_ARG_DIFF_DST, convolved()},
                       {DNNL_ARG_DIFF_WEIGHTS,
                        {plan.parameters.diff_weights_desc(), engine_, worker.weights_gradient.data()}},
                       {DNNL_ARG_DIFF_BIAS,
                        {plan.parameters.diff_bias_desc(), engine_, worker.bias_gradient.data()}},
                       {DNNL_ARG_SCRATCHPAD, scratch(plan.parameters.scratchpad_desc())}},
        .input = {{DNNL_ARG_DIFF_SRC, {plan.input.diff_src_desc(), engine_, worker.input_gradient.data()}},
                  {DNNL_ARG_WEIGHTS, backward_weights_},
                  {DNNL_ARG_DIFF_DST, convolved()},
                  {DNNL_ARG_SCRATCHPAD, scratch(plan.input.scratchpad_desc())}}};
  }

  int64_t WeightFloats() const { return static_cast<int64_t>(weights_.gradient.get_size() / sizeof(float)); }
  int64_t Pixels() const { return shape_.height * shape_.width; }
  int64_t BlockedSize() const {  // floats of one sample of the input in blocks
    return Pixels() * ((shape_.channels + blocks_.input - 1) / blocks_.input * blocks_.input);
  }

  // Makes `source` the group's samples.
  void ReadInput(Worker& worker, int64_t samples, const float* input, memory& source) const {
    if (blocks_.input == 0) return Point(source, input);
    for (int64_t i = 0; i < samples; ++i) {
      onednn::ToBlocks(blocks_.input, Pixels(), shape_.channels, input + i * shape_.input_size(),
                       worker.input.data() + i * BlockedSize());
    }
  }

  const ConvolutionShape shape_;
  const int64_t largest_group_;
  const dnnl::engine engine_;
  dnnl::stream stream_;
  const onednn::Planner planner_;
  const onednn::Blocks blocks_;
  onednn::WeightDescs weights_;
  memory forward_weights_, backward_weights_;
  memory user_weights_, gradient_sum_;  // views
  std::optional<onednn::Reordering> pack_forward_, pack_backward_, unpack_gradient_;
  std::vector<std::optional<onednn::Primitives>> primitives_;  // by the samples of the group
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace

std::unique_ptr<DirectConvolution> MakeDirectConvolution(const ConvolutionShape& shape,
                                                         int64_t largest_group) {
  return CallDnnl([&]() -> std::unique_ptr<DirectConvolution> {
    return std::make_unique<OneDnnConvolution>(shape, largest_group);
  });
}

}  // namespace muster
