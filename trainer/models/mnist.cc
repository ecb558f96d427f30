#include "trainer/models/mnist.h"

#include <cmath>

#include "trainer/data/mnist.h"

namespace muster {
namespace {

constexpr SampleShape kImage = {.height = kMnistSide, .width = kMnistSide, .channels = 1};

absl::Status RefuseHidden(const ModelConfig& config) {
  if (config.hidden.empty()) return absl::OkStatus();
  return InvalidArgument("%s has no hidden layers; mnist_mlp is the model that has", config.model);
}

// Caffe's lenet is trained with momentum 0.9, weight decay 5e-4 and the rate 0.01 * (1 + 1e-4 * step)^-0.75.
OptimizerConfig LenetOptimizer() {
  return {.kind = OptimizerKind::kMomentum,
          .learning_rate = 0.01f,
          .weight_decay = 5e-4f,
          .momentum = 0.9f,
          .schedule = {.kind = ScheduleKind::kInverse, .gamma = 1e-4f, .power = 0.75f}};
}

ModelRecipe Lenet() {
  // Caffe's "xavier": the deviation of this uniform distribution is 1 / sqrt(fan_in).
  const auto xavier = [](int64_t fan_in) { return std::sqrt(3 / static_cast<float>(fan_in)); };
  return {.spec = {.input = kImage,
                   .layers = {ConvolutionSpec{.name = "conv1",
                                              .outputs = 20,
                                              .kernel = 5,
                                              .initializer = Initializer::kUniform,
                                              .scale = xavier(5 * 5)},
                              MaxPoolSpec{.name = "pool1", .window = 2},
                              ConvolutionSpec{.name = "conv2",
                                              .outputs = 50,
                                              .kernel = 5,
                                              .initializer = Initializer::kUniform,
                                              .scale = xavier(5 * 5 * 20)},
                              MaxPoolSpec{.name = "pool2", .window = 2},
                              DenseSpec{.name = "ip1",
                                        .outputs = 500,
                                        .activation = Activation::kRelu,
                                        .initializer = Initializer::kUniform,
                                        .scale = xavier(4 * 4 * 50)},
                              DenseSpec{.name = "ip2",
                                        .outputs = kMnistClasses,
                                        .initializer = Initializer::kUniform,
                                        .scale = xavier(500)}}},
          .defaults = {.optimizer = LenetOptimizer(), .batch_size = 64, .train_steps = 10'000}};
}

ModelRecipe Deep() {
  constexpr float kDeviation = 0.1f, kBias = 0.1f;
  const auto convolution = [&](const std::string& name, int64_t outputs) {
    return ConvolutionSpec{.name = name,
                           .outputs = outputs,
                           .kernel = 5,
                           .padding = Padding::kSame,
                           .activation = Activation::kRelu,
                           .initializer = Initializer::kTruncatedNormal,
                           .scale = kDeviation,
                           .initial_bias = kBias};
  };
  const auto dense = [&](const std::string& name, int64_t outputs, Activation activation) {
    return DenseSpec{.name = name,
                     .outputs = outputs,
                     .activation = activation,
                     .initializer = Initializer::kTruncatedNormal,
                     .scale = kDeviation,
                     .initial_bias = kBias};
  };
  return {
      .spec = {.input = kImage,
               .layers = {convolution("conv1", 32), MaxPoolSpec{.name = "pool1", .window = 2},
                          convolution("conv2", 64), MaxPoolSpec{.name = "pool2", .window = 2},
                          dense("fc1", 1024, Activation::kRelu), DropoutSpec{.name = "dropout", .rate = 0.5f},
                          dense("fc2", kMnistClasses, Activation::kNone)}},
      .defaults = {.optimizer = {.kind = OptimizerKind::kAdam, .learning_rate = 1e-4f},
                   .batch_size = 50,
                   .train_steps = 20'000}};
}

}  // namespace
absl::StatusOr<ModelRecipe> MnistSoftmax(const ModelConfig& config) {
  MUSTER_RETURN_IF_ERROR(RefuseHidden(config));
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
    add(absl::StrFormat("hidden_%d", i), hidden[i], Activation::kRelu);
  }
  add("softmax", kMnistClasses, Activation::kNone);
  return recipe;
}

absl::StatusOr<ModelRecipe> MnistCnn(const ModelConfig& config) {
  MUSTER_RETURN_IF_ERROR(RefuseHidden(config));
  return config.variant == "deep" ? Deep() : Lenet();
}

}  // namespace muster
