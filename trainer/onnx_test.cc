#include "trainer/onnx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <numeric>

#include "base/file.h"
#include "proto/onnx_subset.pb.h"
#include "trainer/models/model.h"

namespace muster {
namespace {

using ::testing::ElementsAre;

TEST(Onnx, WeightsByChannelTakeAnImageByChannel) {
  constexpr SampleShape kImage = {.height = 3, .width = 2, .channels = 4};
  constexpr int64_t kOutputs = 5;
  std::vector<float> weights(kImage.size() * kOutputs);
  std::iota(weights.begin(), weights.end(), 1.0f);
  const std::vector<float> transposed = WeightsByChannel(kImage, kOutputs, weights);
  ASSERT_EQ(transposed.size(), weights.size());
  for (int64_t y = 0; y < kImage.height; ++y) {
    for (int64_t x = 0; x < kImage.width; ++x) {
      for (int64_t c = 0; c < kImage.channels; ++c) {
        const int64_t here = (y * kImage.width + x) * kImage.channels + c;
        const int64_t there = (c * kImage.height + y) * kImage.width + x;
        for (int64_t o = 0; o < kOutputs; ++o) {
          ASSERT_EQ(transposed[o * kImage.size() + there], weights[here * kOutputs + o])
              << y << " " << x << " " << c << " " << o;
        }
      }
    }
  }
}

std::vector<float> Values(const onnx::Tensor& tensor) {
  std::vector<float> values(tensor.raw_data().size() / sizeof(float));
  std::memcpy(values.data(), tensor.raw_data().data(), tensor.raw_data().size());
  return values;
}

onnx::Model SaveAndRead(const ModelPlan& plan, const std::vector<float>& parameters) {
  const TemporaryDirectory folder;
  const std::filesystem::path path = folder.path() / "model.onnx";
  EXPECT_TRUE(SaveOnnx(path, plan, parameters, {{"model", "m"}}).ok());
  onnx::Model model;
  EXPECT_TRUE(model.ParseFromString(ReadFile(path).value_or("")));
  return model;
}

TEST(Onnx, DenseLayersAfterAnImageOfSeveralChannels) {
  const ModelPlan plan =
      *PlanModel({.input = {.height = 2, .width = 3, .channels = 2},
                  .layers = {DenseSpec{.name = "a", .outputs = 4, .activation = Activation::kRelu},
                             DenseSpec{.name = "b", .outputs = 3}}});
  std::vector<float> parameters(plan.layout.size());
  std::iota(parameters.begin(), parameters.end(), 0.0f);
  const onnx::Model model = SaveAndRead(plan, parameters);
  EXPECT_EQ(model.metadata_props(0).key(), "model");
  EXPECT_EQ(model.metadata_props(0).value(), "m");

  const onnx::Graph& graph = model.graph();
  std::vector<std::string> operations;
  std::string value = "input";
  for (const onnx::Node& node : graph.node()) {
    operations.push_back(node.op_type());
    EXPECT_EQ(node.input(0), value);
    value = node.output(0);
  }
  EXPECT_EQ(value, "logits");
  EXPECT_THAT(operations, ElementsAre("Flatten", "Gemm", "Relu", "Gemm"));
  const auto shape = [](const onnx::ValueInfo& info) {
    std::vector<int64_t> sizes;
    for (const auto& dim : info.type().tensor_type().shape().dim()) sizes.push_back(dim.dim_value());
    return sizes;
  };
  EXPECT_THAT(shape(graph.input(0)), ElementsAre(0, 2, 2, 3));
  EXPECT_EQ(graph.input(0).type().tensor_type().shape().dim(0).dim_param(), "N");
  EXPECT_THAT(shape(graph.output(0)), ElementsAre(0, 3));

  ASSERT_EQ(graph.initializer_size(), 4);
  const auto& tensors = plan.layout.tensors();
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(graph.initializer(i).name(), tensors[i].spec.name);
    const auto begin = parameters.begin() + tensors[i].offset;
    const std::vector<float> ours(begin, begin + tensors[i].size);
    const LayerPlan& layer = plan.layers[i / 2];
    const bool is_bias = i % 2 == 1;
    const int64_t outputs = layer.output.size();
    EXPECT_EQ(Values(graph.initializer(i)), is_bias ? ours : WeightsByChannel(layer.input, outputs, ours));
    const std::vector<int64_t> shape =
        is_bias ? std::vector<int64_t>{outputs} : std::vector<int64_t>{outputs, layer.input.size()};
    EXPECT_THAT(graph.initializer(i).dims(), testing::ElementsAreArray(shape));
  }
}

TEST(Onnx, ConvolutionsPoolingAndDropout) {
  const ModelPlan plan = *PlanModel(
      {.input = {.height = 8, .width = 8, .channels = 3},
       .layers = {ConvolutionSpec{.name = "same",
                                  .outputs = 4,
                                  .kernel = 4,
                                  .padding = Padding::kSame,
                                  .activation = Activation::kRelu},
                  MaxPoolSpec{.name = "pool", .window = 2},
                  ConvolutionSpec{.name = "valid", .outputs = 2, .kernel = 3},
                  DropoutSpec{.name = "dropout", .rate = 0.5f}, DenseSpec{.name = "dense", .outputs = 5}}});
  std::vector<float> parameters(plan.layout.size());
  std::iota(parameters.begin(), parameters.end(), 0.0f);
  const onnx::Graph graph = SaveAndRead(plan, parameters).graph();
  std::vector<std::string> operations;
  std::map<std::string, std::vector<int64_t>> attributes;
  for (const onnx::Node& node : graph.node()) {
    operations.push_back(node.op_type());
    for (const onnx::Attribute& attribute : node.attribute()) {
      attributes[node.name() + " " + attribute.name()].assign(attribute.ints().begin(),
                                                              attribute.ints().end());
    }
  }
  EXPECT_THAT(operations, ElementsAre("Conv", "Relu", "MaxPool", "Conv", "Flatten", "Gemm"));
  EXPECT_THAT(attributes["same/Conv kernel_shape"], ElementsAre(4, 4));
  EXPECT_THAT(attributes["same/Conv pads"], ElementsAre(1, 1, 2, 2));  // the smaller half goes before
  EXPECT_THAT(attributes["pool/MaxPool kernel_shape"], ElementsAre(2, 2));
  EXPECT_THAT(attributes["pool/MaxPool strides"], ElementsAre(2, 2));
  EXPECT_THAT(attributes["valid/Conv pads"], ElementsAre(0, 0, 0, 0));
  // [kernel, kernel, channels, outputs] has become [outputs, channels, kernel, kernel].
  EXPECT_THAT(graph.initializer(0).dims(), ElementsAre(4, 3, 4, 4));
  const std::vector<float> weights = Values(graph.initializer(0));
  const int output = 3, channel = 1, y = 2, x = 0;
  EXPECT_EQ(weights[((output * 3 + channel) * 4 + y) * 4 + x],
            parameters[plan.layout.tensors()[0].offset + ((y * 4 + x) * 3 + channel) * 4 + output]);
}

TEST(Onnx, WhatNoFileCanHoldIsRefused) {
  const ModelPlan plan =
      *PlanModel({.input = {.channels = 1 << 15}, .layers = {DenseSpec{.name = "wide", .outputs = 1 << 14}}});
  // Never touched, so it costs no memory.
  const auto parameters = std::make_unique_for_overwrite<float[]>(plan.layout.size());
  const TemporaryDirectory folder;
  const std::filesystem::path path = folder.path() / "model.onnx";
  const absl::Status status =
      SaveOnnx(path, plan, {parameters.get(), static_cast<size_t>(plan.layout.size())}, {});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            path.string() + ": 2147549184 bytes of parameters are more than an ONNX file can hold");
  EXPECT_FALSE(std::filesystem::exists(path));
}

}  // namespace
}  // namespace muster
