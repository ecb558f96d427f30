#include "trainer/onnx.h"

#include <absl/strings/str_join.h>
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

onnx::Model SaveAndRead(const ModelPlan& plan, const std::vector<float>& parameters,
                        const TableValues& tables = {}, const SavedModelInfo& info = {}) {
  const TemporaryDirectory folder;
  const std::filesystem::path path = folder.path() / "model.onnx";
  EXPECT_TRUE(SaveOnnx(path, plan, parameters, tables, info).ok());
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
  const SavedModelInfo info = {.config = {.model = "m"}, .data_set = "d"};
  const onnx::Model model = SaveAndRead(plan, parameters, {}, info);
  SafetensorsMetadata metadata;
  for (const onnx::StringStringEntry& entry : model.metadata_props()) metadata[entry.key()] = entry.value();
  EXPECT_EQ(metadata, ToMetadata(info));

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

TEST(Onnx, ColumnsAreInputsByTheirNames) {
  const ModelPlan plan = *PlanModel({.input = {.channels = 2},
                                     .columns = {WideColumnSpec{.name = "job", .buckets = 3},
                                                 EmbeddingColumnSpec{.name = "job", .buckets = 3, .width = 4},
                                                 OneHotColumnSpec{.name = "sex", .buckets = 2},
                                                 WideColumnSpec{.name = "sex_x_job", .buckets = 5}},
                                     .layers = {DenseSpec{.name = "logit", .outputs = 1}},
                                     .loss = LossKind::kSigmoidCrossEntropy});
  std::vector<float> parameters(plan.layout.size());
  std::iota(parameters.begin(), parameters.end(), 0.0f);
  TableValues tables;
  for (const TableSpec& table : plan.tables) {
    std::vector<float>& values = tables.emplace_back(table.rows * table.width);
    std::iota(values.begin(), values.end(), 100.0f * static_cast<float>(tables.size()));
  }
  const SavedModelInfo info = {
      .features = {.numeric = {{.column = "age", .mean = 38.5, .deviation = 13.5}, {.column = "gain"}}}};
  const onnx::Graph graph = SaveAndRead(plan, parameters, tables, info).graph();

  std::map<std::string, int> inputs;
  for (const onnx::ValueInfo& input : graph.input()) {
    inputs[input.name()] = input.type().tensor_type().elem_type();
    ASSERT_EQ(input.type().tensor_type().shape().dim_size(), 1);
    EXPECT_EQ(input.type().tensor_type().shape().dim(0).dim_param(), "N");
  }
  EXPECT_EQ(graph.input_size(), 5);  // the one that is used twice is there once
  EXPECT_EQ(inputs, (std::map<std::string, int>{{"age", onnx::Tensor::FLOAT},
                                                {"gain", onnx::Tensor::FLOAT},
                                                {"job", onnx::Tensor::INT64},
                                                {"sex", onnx::Tensor::INT64},
                                                {"sex_x_job", onnx::Tensor::INT64}}));
  std::vector<std::string> nodes;
  for (const onnx::Node& node : graph.node()) {
    nodes.push_back(node.op_type() + "(" + absl::StrJoin(node.input(), ", ") + ") -> " + node.output(0));
  }
  EXPECT_THAT(
      nodes,
      ElementsAre("Unsqueeze(age, numbers/axis) -> age/Unsqueeze",
                  "Unsqueeze(gain, numbers/axis) -> gain/Unsqueeze",
                  "Concat(age/Unsqueeze, gain/Unsqueeze) -> numbers/Concat",
                  "Sub(numbers/Concat, numbers/mean) -> numbers/Sub",
                  "Div(numbers/Sub, numbers/deviation) -> numbers/Div",
                  "Gather(wide/job, job) -> wide/job/Gather", "Gather(deep/job, job) -> deep/job/Gather",
                  "OneHot(sex, one_hot/sex/buckets, one_hot/sex/off_on) -> one_hot/sex",
                  "Gather(wide/sex_x_job, sex_x_job) -> wide/sex_x_job/Gather",
                  "Concat(numbers/Div, deep/job/Gather, one_hot/sex) -> columns/Concat",
                  "Gemm(columns/Concat, logit/weights, logit/bias) -> logit/Gemm",
                  "Sum(wide/job/Gather, wide/sex_x_job/Gather, wide/bias, logit/Gemm) -> logits"));
  std::map<std::string, const onnx::Tensor*> tensors;
  for (const onnx::Tensor& tensor : graph.initializer()) tensors[tensor.name()] = &tensor;
  EXPECT_THAT(Values(*tensors.at("numbers/mean")), ElementsAre(38.5f, 0.0f));
  EXPECT_THAT(Values(*tensors.at("numbers/deviation")), ElementsAre(13.5f, 1.0f));
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    const onnx::Tensor& tensor = *tensors.at(plan.tables[t].name);
    EXPECT_THAT(tensor.dims(), ElementsAre(plan.tables[t].rows, plan.tables[t].width));
    EXPECT_EQ(Values(tensor), tables[t]);
  }
  EXPECT_THAT(Values(*tensors.at("wide/bias")),
              ElementsAre(parameters[static_cast<size_t>(plan.wide_bias->offset)]));
  const onnx::Tensor& buckets = *tensors.at("one_hot/sex/buckets");
  EXPECT_EQ(buckets.data_type(), onnx::Tensor::INT64);
  EXPECT_EQ(buckets.raw_data(), std::string("\2\0\0\0\0\0\0\0", 8));
  EXPECT_THAT(Values(*tensors.at("one_hot/sex/off_on")), ElementsAre(0.0f, 1.0f));
}

TEST(Onnx, AWideModelWithoutLayersIsASum) {
  const ModelPlan plan =
      *PlanModel({.input = {.channels = 0}, .columns = {WideColumnSpec{.name = "job", .buckets = 3}}});
  const std::vector<float> parameters(plan.layout.size());
  const onnx::Graph graph = SaveAndRead(plan, parameters, {{1, 2, 3}}).graph();
  ASSERT_EQ(graph.node_size(), 2);
  EXPECT_EQ(graph.node(1).op_type(), "Sum");
  EXPECT_THAT(graph.node(1).input(), ElementsAre("wide/job/Gather", "wide/bias"));
  EXPECT_THAT(graph.node(1).output(), ElementsAre("logits"));
}

TEST(Onnx, WhatNoFileCanHoldIsRefused) {
  const ModelPlan plan =
      *PlanModel({.input = {.channels = 1 << 15}, .layers = {DenseSpec{.name = "wide", .outputs = 1 << 14}}});
  // Never touched, so it costs no memory.
  const auto parameters = std::make_unique_for_overwrite<float[]>(plan.layout.size());
  const TemporaryDirectory folder;
  const std::filesystem::path path = folder.path() / "model.onnx";
  const absl::Status status =
      SaveOnnx(path, plan, {parameters.get(), static_cast<size_t>(plan.layout.size())}, {}, {});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(),
            path.string() + ": 2147549184 bytes of parameters are more than an ONNX file can hold");
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(Onnx, AModelThatAFileCannotHoldIsKnownFromItsPlan) {
  const auto check = [](int64_t outputs) {
    const auto plan =
        PlanModel({.input = {.channels = 1024}, .layers = {DenseSpec{.name = "a", .outputs = outputs}}});
    return CheckOnnxSize(*plan);
  };
  EXPECT_TRUE(check(500'000).ok());
  const absl::Status too_large = check(600'000);
  EXPECT_EQ(too_large.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(too_large.message(), "2460000000 bytes of parameters are more than an ONNX file can hold");
}

}  // namespace
}  // namespace muster
