#include "trainer/models/mnist.h"

#include <cmath>
#include <utility>

#include "trainer/models/dense_layer.h"
#include "trainer/models/sequential.h"

namespace muster {

absl::StatusOr<std::unique_ptr<Model>> MakeMnistSoftmax(const ModelConfig& config, int64_t largest_batch) {
  if (!config.hidden.empty()) {
    return InvalidArgument("%s has no hidden layers; mnist_mlp is the model that has", config.model);
  }
  std::vector<std::unique_ptr<Layer>> layers;
  layers.push_back(MakeDenseLayer({.name = "softmax", .inputs = kMnistPixels, .outputs = kMnistClasses}));
  return MakeSequential(std::move(layers), largest_batch);
}

absl::StatusOr<std::unique_ptr<Model>> MakeMnistMlp(const ModelConfig& config, int64_t largest_batch) {
  const std::vector<int64_t> hidden = config.hidden.empty() ? std::vector<int64_t>{100} : config.hidden;
  std::vector<std::unique_ptr<Layer>> layers;
  int64_t inputs = kMnistPixels;
  const auto add = [&](const std::string& name, int64_t outputs, Activation activation) {
    layers.push_back(MakeDenseLayer({.name = name,
                                     .inputs = inputs,
                                     .outputs = outputs,
                                     .activation = activation,
                                     .weights_initializer = Initializer::kTruncatedNormal,
                                     .weights_scale = 1 / std::sqrt(static_cast<float>(inputs))}));
    inputs = outputs;
  };
  for (size_t i = 0; i < hidden.size(); ++i) {
    if (hidden[i] < 1) return InvalidArgument("hidden: a layer of size %d; at least 1", hidden[i]);
    add(absl::StrFormat("hidden_%d", i), hidden[i], Activation::kRelu);
  }
  add("softmax", kMnistClasses, Activation::kNone);
  return MakeSequential(std::move(layers), largest_batch);
}

}  // namespace muster
