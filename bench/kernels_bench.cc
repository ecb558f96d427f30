// Speed of the kernels at the sizes of the models, on one thread or more.

#include <benchmark/benchmark.h>
#include <dnnl.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/aligned_floats.h"
#include "kernels/convolution.h"
#include "kernels/dense.h"
#include "kernels/max_pool.h"
#include "kernels/threads.h"

namespace muster {
namespace {

constexpr char kHelp[] =
    R"(Times the operations of the models' layers, at the models' sizes, on this machine's CPU.

FLOP/s counts two operations for each product and sum that defines the layer, so that it can be held against
the peak of the machine; the number behind the slash is the batch. `backward` gives the gradient of the
parameters, and that of the input unless the layer is a model's first. `step_products` are the bare products
of oneDNN in a training step, each at the layout that it is fastest with: its samples/s are what a trainer
could reach if the rest cost nothing.)";

// A buffer that a closure can keep.
using Buffer = std::shared_ptr<std::vector<float>>;

Buffer RandomFloats(int64_t size) {
  RandomStream random(1);
  const Buffer values = std::make_shared<std::vector<float>>(size);
  for (float& value : *values) value = static_cast<float>(2 * random.NextDouble() - 1);
  return values;
}

// Times work() on a batch; `products` is what it multiplies, 0 where nothing is.
void Register(const std::string& name, int64_t batch, int64_t products, std::function<void()> work) {
  const auto run = [batch, products, work = std::move(work)](benchmark::State& state) {
    for (auto iteration : state) work();
    const auto rate = [](int64_t count) {
      return benchmark::Counter(static_cast<double>(count), benchmark::Counter::kIsIterationInvariantRate);
    };
    state.counters["samples/s"] = rate(batch);
    if (products > 0) state.counters["FLOP/s"] = rate(2 * products);
  };
  benchmark::RegisterBenchmark(absl::StrFormat("%s/%d", name, batch).c_str(), run)
      ->UseRealTime()
      ->Unit(benchmark::kMillisecond);
}

void RegisterDense(const std::string& name, const DenseShape& shape, bool is_first) {
  const auto dense = std::make_shared<Dense>(shape, Activation::kRelu);
  const Buffer input = RandomFloats(shape.batch * shape.inputs), bias = RandomFloats(shape.outputs),
               output = RandomFloats(shape.batch * shape.outputs),
               output_gradient = RandomFloats(shape.batch * shape.outputs),
               weights_gradient = RandomFloats(shape.inputs * shape.outputs),
               bias_gradient = RandomFloats(shape.outputs),
               input_gradient = RandomFloats(is_first ? 0 : shape.batch * shape.inputs);
  // At a cache line, like the tensors of a model: elsewhere their rows would share fewer sets of the caches.
  const auto weights = std::make_shared<AlignedFloats>(shape.inputs * shape.outputs, 0.5f);
  const auto w = std::span<const float>(weights->data(), shape.inputs * shape.outputs);
  const int64_t products = shape.batch * shape.inputs * shape.outputs;
  Register("dense_forward/" + name, shape.batch, products,
           [=, keep = weights] { dense->Forward(shape.batch, *input, w, *bias, *output); });
  Register("dense_backward/" + name, shape.batch, is_first ? products : 2 * products, [=, keep = weights] {
    dense->Backward(shape.batch, *input, w, *output, *output_gradient, *weights_gradient, *bias_gradient,
                    *input_gradient);
  });
}

// One product of oneDNN with nothing around it: op(a) [m, k] * op(b) [k, n]. All begin at a cache line, and
// rows a multiple of 1,024 bytes long are a line further apart: the layout that oneDNN is fastest with.
std::function<void()> BareProduct(char transpose_a, char transpose_b, int64_t m, int64_t n, int64_t k) {
  const auto stride = [](int64_t columns) { return columns % 256 == 0 ? columns + 16 : columns; };
  const auto matrix = [](int64_t rows, int64_t row_stride) {
    return std::make_shared<AlignedFloats>(rows * row_stride, 0.5f);
  };
  const int64_t a_stride = stride(transpose_a == 'N' ? k : m), b_stride = stride(transpose_b == 'N' ? n : k),
                c_stride = stride(n);
  return [=, a = matrix(transpose_a == 'N' ? m : k, a_stride),
          b = matrix(transpose_b == 'N' ? k : n, b_stride), c = matrix(m, c_stride)] {
    dnnl_sgemm(transpose_a, transpose_b, m, n, k, 1, a->data(), a_stride, b->data(), b_stride, 0, c->data(),
               c_stride);
  };
}

// All that oneDNN multiplies in one step of an MLP: what is left of a step is ours.
void RegisterStepProducts(const std::string& name, int64_t batch, const std::vector<int64_t>& sizes) {
  std::vector<std::function<void()>> work;
  int64_t products = 0;
  for (size_t i = 0; i + 1 < sizes.size(); ++i) {
    const int64_t inputs = sizes[i], outputs = sizes[i + 1];
    work.push_back(BareProduct('N', 'N', batch, outputs, inputs));
    work.push_back(BareProduct('T', 'N', inputs, outputs, batch));
    if (i > 0) work.push_back(BareProduct('N', 'T', batch, inputs, outputs));
    products += (i > 0 ? 3 : 2) * batch * inputs * outputs;
  }
  Register("step_products/" + name, batch, products, [=] {
    for (const std::function<void()>& product : work) product();
  });
}

void RegisterConvolution(const std::string& name, const ConvolutionShape& shape, int64_t batch,
                         bool is_first) {
  const auto convolution = std::make_shared<Convolution>(shape, batch);
  const Buffer input = RandomFloats(batch * shape.input_size()), weights = RandomFloats(shape.weights_size()),
               bias = RandomFloats(shape.outputs), output = RandomFloats(batch * shape.output_size()),
               output_gradient = RandomFloats(batch * shape.output_size()),
               weights_gradient = RandomFloats(shape.weights_size()),
               bias_gradient = RandomFloats(shape.outputs),
               input_gradient = RandomFloats(is_first ? 0 : batch * shape.input_size());
  const int64_t products = batch * shape.convolved_height() * shape.convolved_width() * shape.weights_size();
  Register("convolution_forward/" + name, batch, products,
           [=] { convolution->Forward(batch, *input, *weights, *bias, *output); });
  convolution->Forward(batch, *input, *weights, *bias, *output);  // which the backward pass follows
  Register("convolution_backward/" + name, batch, is_first ? products : 2 * products, [=] {
    convolution->Backward(batch, *input, *weights, *output_gradient, *weights_gradient, *bias_gradient,
                          *input_gradient);
  });
}

void RegisterMaxPool(const std::string& name, const MaxPoolShape& shape, int64_t batch) {
  const Buffer input = RandomFloats(batch * shape.input_size()),
               output = RandomFloats(batch * shape.output_size());
  const auto winners = std::make_shared<std::vector<uint8_t>>(output->size());
  Register("max_pool_forward/" + name, batch, 0,
           [=] { MaxPoolForward(shape, batch, *input, *output, *winners); });
  Register("max_pool_backward/" + name, batch, 0,
           [=] { MaxPoolBackward(shape, batch, *output, *winners, *input); });
}

void RegisterAll() {
  constexpr bool kFirst = true;
  RegisterDense("softmax_784x10", {.batch = 100, .inputs = 784, .outputs = 10}, kFirst);
  RegisterDense("mlp_784x100", {.batch = 100, .inputs = 784, .outputs = 100}, kFirst);
  RegisterDense("mlp_784x512", {.batch = 128, .inputs = 784, .outputs = 512}, kFirst);
  RegisterDense("mlp_512x512", {.batch = 128, .inputs = 512, .outputs = 512}, !kFirst);
  RegisterDense("lenet_800x500", {.batch = 64, .inputs = 800, .outputs = 500}, !kFirst);
  for (const int64_t batch : {50, 128}) {
    RegisterDense("deep_3136x1024", {.batch = batch, .inputs = 3136, .outputs = 1024}, !kFirst);
  }

  RegisterStepProducts("mlp_784x512x512x10", 128, {784, 512, 512, 10});

  // With the pooling that follows them, which the second group times by itself.
  ConvolutionShape lenet_1 = {
      .height = 28, .width = 28, .channels = 1, .outputs = 20, .kernel = 5, .pool_window = 2};
  ConvolutionShape lenet_2 = {
      .height = 12, .width = 12, .channels = 20, .outputs = 50, .kernel = 5, .pool_window = 2};
  ConvolutionShape deep_1 = {.height = 28,
                             .width = 28,
                             .channels = 1,
                             .outputs = 32,
                             .kernel = 5,
                             .padding = Padding::kSame,
                             .activation = Activation::kRelu,
                             .pool_window = 2};
  ConvolutionShape deep_2 = deep_1;
  deep_2.height = deep_2.width = 14;
  deep_2.channels = 32;
  deep_2.outputs = 64;
  RegisterConvolution("lenet_5x5x1x20", lenet_1, 64, kFirst);
  RegisterConvolution("lenet_5x5x20x50", lenet_2, 64, !kFirst);
  for (const int64_t batch : {50, 128}) {
    RegisterConvolution("deep_5x5x1x32", deep_1, batch, kFirst);
    RegisterConvolution("deep_5x5x32x64", deep_2, batch, !kFirst);
  }
  RegisterMaxPool("lenet_24x24x20", {.height = 24, .width = 24, .channels = 20, .window = 2}, 64);
  RegisterMaxPool("lenet_8x8x50", {.height = 8, .width = 8, .channels = 50, .window = 2}, 64);
  RegisterMaxPool("deep_28x28x32", {.height = 28, .width = 28, .channels = 32, .window = 2}, 128);
  RegisterMaxPool("deep_14x14x64", {.height = 14, .width = 14, .channels = 64, .window = 2}, 128);
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  bool json = false;
  int threads = 1;
  std::string filter = ".";
  CLI::App app(muster::kHelp, "kernels_bench");
  app.add_flag("--json", json, "results as JSON");
  app.add_option("--threads", threads, "OpenMP threads of an operation")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  app.add_option("--filter", filter, "a regular expression: only the operations whose names match");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;  // CLI11's own statuses are above 100
  }

  // Google's library takes its settings as flags.
  std::vector<std::string> flags = {argv[0], "--benchmark_filter=" + filter};
  if (json) flags.push_back("--benchmark_format=json");
  std::vector<char*> pointers;
  for (std::string& flag : flags) pointers.push_back(flag.data());
  int count = static_cast<int>(pointers.size());
  benchmark::Initialize(&count, pointers.data());
  benchmark::AddCustomContext("instruction_set", muster::InstructionSetName());
  benchmark::AddCustomContext("threads", std::to_string(threads));
  muster::SetKernelThreads(threads);
  muster::RegisterAll();
  // None where the filter is no regular expression or matches nothing, which the library says.
  return benchmark::RunSpecifiedBenchmarks() > 0 ? 0 : 2;
}
