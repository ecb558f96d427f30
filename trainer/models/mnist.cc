#include "trainer/models/mnist.h"

#include <cmath>

#include "trainer/data/mnist.h"

namespace muster {
namespace {

constexpr SampleShape kImage = {.height = kMnistSide, .width = kMnistSide, .channels = 1};

}  // namespace

absl::StatusOr<ModelRecipe> MnistSoftmax(const ModelConfig& config) {
  if (!config.hidden.empty()) {
    return InvalidArgument("%s has no hidden layers; mnist_mlp is the model that has", config.model);
  }
  return ModelRecipe{
      .spec = {.input = kImage, .layers = {DenseSpec{.name = "softmax", .outputs = kMnistClasses}}},
      .defaults = {.optimizer = {.kind = OptimizerKind::kSgd, .learning_rate = 0.5f},
                   .batch_size = 100,
                   .train_steps = 1000}};
}

absl::StatusOr<ModelRecipe> MnistMlp(const ModelConfig& config) {
  const std::vector<int64_t> hidden = config.hidden.empty() ? std::vector<int64_t>{100} : config.hidden;
  ModelRecipe recipe{.spec = {.input = kImage},
                     .defaults = {.optimizer = {.kind = OptimizerKind::kAdam, .learning_rate = 0.001f},
                                  .batch_size = 100,
                                  .train_steps = 5000}};
  int64_t inputs = kMnistPixels;
  const auto add = [&](const std::string& name, int64_t outputs, Activation activation) {
    recipe.spec.layers.push_back(DenseSpec{.name = name,
                                           .outputs = outputs,
                                           .activation = activation,
                                           .initializer = Initializer::kTruncatedNormal,
                                           .scale = 1 / std::sqrt(static_cast<float>(inputs))});
    inputs = outputs;
  };
  for (size_t i = 0; i < hidden.size(); ++i) {
    if (hidden[i] < 1) return InvalidArgument("hidden: a layer of size %d; at least 1", hidden[i]);
    add(absl::StrFormat("hidden_%d", i), hidden[i], Activation::kRelu);
  }
  add("softmax", kMnistClasses, Activation::kNone);
  return recipe;
}

}  // namespace muster
