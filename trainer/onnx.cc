#include "trainer/onnx.h"

#include <bit>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include "base/file.h"
#include "proto/onnx_subset.pb.h"

namespace muster {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

constexpr int64_t kIrVersion = 7;  // the one that came with operator set 13
constexpr int64_t kOperatorSet = 13;
constexpr const char* kImageName = "input";
constexpr const char* kOutputName = "logits";
constexpr int64_t kMaxParameterBytes = std::numeric_limits<int32_t>::max() - (1 << 20);

// [N, shape...]
onnx::ValueInfo DescribeValue(const std::string& name, onnx::Tensor::DataType data_type,
                              const std::vector<int64_t>& shape) {
  onnx::ValueInfo info;
  info.set_name(name);
  onnx::Type::TensorType& type = *info.mutable_type()->mutable_tensor_type();
  type.set_elem_type(data_type);
  type.mutable_shape()->add_dim()->set_dim_param("N");
  for (const int64_t size : shape) type.mutable_shape()->add_dim()->set_dim_value(size);
  return info;
}

void AddInteger(onnx::Node& node, const std::string& name, int64_t value) {
  onnx::Attribute& attribute = *node.add_attribute();
  attribute.set_name(name);
  attribute.set_type(onnx::Attribute::INT);
  attribute.set_i(value);
}

void AddIntegers(onnx::Node& node, const std::string& name, const std::vector<int64_t>& values) {
  onnx::Attribute& attribute = *node.add_attribute();
  attribute.set_name(name);
  attribute.set_type(onnx::Attribute::INTS);
  for (const int64_t value : values) attribute.add_ints(value);
}

// Nodes, tensors and inputs of a graph. The value that a node gives has the node's name.
class GraphBuilder {
 public:
  explicit GraphBuilder(onnx::Graph& graph) : graph_(graph) {}

  onnx::Node& AddNode(const std::string& name, const std::string& operation,
                      const std::vector<std::string>& inputs) {
    onnx::Node& node = *graph_.add_node();
    node.set_name(name);
    node.set_op_type(operation);
    for (const std::string& input : inputs) node.add_input(input);
    node.add_output(name);
    return node;
  }

  void AddTensor(const std::string& name, const std::vector<int64_t>& shape, std::span<const float> values) {
    AddTensor(name, onnx::Tensor::FLOAT, shape, values.data(), values.size_bytes());
  }

  void AddTensor(const std::string& name, const std::vector<int64_t>& shape,
                 std::span<const int64_t> values) {
    AddTensor(name, onnx::Tensor::INT64, shape, values.data(), values.size_bytes());
  }

  // Once, whatever the number of those that take it.
  void AddInput(const std::string& name, onnx::Tensor::DataType type, const std::vector<int64_t>& shape) {
    if (inputs_.insert(name).second) *graph_.add_input() = DescribeValue(name, type, shape);
  }

  // What the last node gives.
  void SetOutput(const std::string& name, const std::vector<int64_t>& shape) {
    graph_.mutable_node(graph_.node_size() - 1)->set_output(0, name);
    *graph_.add_output() = DescribeValue(name, onnx::Tensor::FLOAT, shape);
  }

 private:
  void AddTensor(const std::string& name, onnx::Tensor::DataType type, const std::vector<int64_t>& shape,
                 const void* bytes, size_t byte_count) {
    onnx::Tensor& tensor = *graph_.add_initializer();
    for (const int64_t size : shape) tensor.add_dims(size);
    tensor.set_data_type(type);
    tensor.set_name(name);
    tensor.set_raw_data(bytes, byte_count);
  }

  onnx::Graph& graph_;
  std::set<std::string> inputs_;
};

// The inputs of a model with id columns: what they give the first layer and the logits.
class ColumnsWriter {
 public:
  ColumnsWriter(const ModelPlan& plan, const TableValues& tables, GraphBuilder& graph)
      : plan_(plan), tables_(tables), graph_(graph) {}

  // The numbers, standardized, [N, features.size()].
  void AddNumbers(const std::vector<NumericFeature>& features) {
    if (features.empty()) return;
    const int64_t count = static_cast<int64_t>(features.size());
    const std::string axis = "numbers/axis";
    graph_.AddTensor(axis, {1}, std::vector<int64_t>{1});
    std::vector<std::string> columns;
    std::vector<float> means, deviations;
    for (const NumericFeature& feature : features) {
      graph_.AddInput(feature.column, onnx::Tensor::FLOAT, {});
      columns.push_back(feature.column + "/Unsqueeze");
      graph_.AddNode(columns.back(), "Unsqueeze", {feature.column, axis});
      means.push_back(static_cast<float>(feature.mean));
      deviations.push_back(static_cast<float>(feature.deviation));
    }
    graph_.AddTensor("numbers/mean", {count}, means);
    graph_.AddTensor("numbers/deviation", {count}, deviations);
    AddInteger(graph_.AddNode("numbers/Concat", "Concat", columns), "axis", 1);
    graph_.AddNode("numbers/Sub", "Sub", {"numbers/Concat", "numbers/mean"});
    graph_.AddNode("numbers/Div", "Div", {"numbers/Sub", "numbers/deviation"});
    first_layer_.push_back("numbers/Div");
  }

  // One overload for each kind of id column.
  void Add(const WideColumnSpec& spec, const IdColumnPlan& column) {
    logits_.push_back(AddLookup(spec.name, column.table));
  }

  void Add(const EmbeddingColumnSpec& spec, const IdColumnPlan& column) {
    first_layer_.push_back(AddLookup(spec.name, column.table));
  }

  void Add(const OneHotColumnSpec& spec, const IdColumnPlan&) {
    graph_.AddInput(spec.name, onnx::Tensor::INT64, {});
    const std::string name = "one_hot/" + spec.name;
    graph_.AddTensor(name + "/buckets", {1}, std::vector<int64_t>{spec.buckets});
    graph_.AddTensor(name + "/off_on", {2}, std::vector<float>{0, 1});
    graph_.AddNode(name, "OneHot", {spec.name, name + "/buckets", name + "/off_on"});
    first_layer_.push_back(name);
  }

  // What the first layer takes: the numbers and behind them what the id columns give, in their order.
  std::string JoinFirstLayer() {
    if (first_layer_.size() == 1) return first_layer_.front();
    AddInteger(graph_.AddNode("columns/Concat", "Concat", first_layer_), "axis", 1);
    return "columns/Concat";
  }

  // The wide columns and their bias, and the value that the layers give, if there are any.
  void AddToLogits(const std::string& bias, const std::optional<std::string>& deep) {
    std::vector<std::string> terms = logits_;
    terms.push_back(bias);
    if (deep) terms.push_back(*deep);
    graph_.AddNode("wide/Sum", "Sum", terms);
  }

 private:
  // [N, width of the table]
  std::string AddLookup(const std::string& column, int table_index) {
    const TableSpec& table = plan_.tables[table_index];
    const std::string name = table.name + "/Gather";
    graph_.AddInput(column, onnx::Tensor::INT64, {});
    graph_.AddTensor(table.name, {table.rows, table.width}, tables_[table_index]);
    graph_.AddNode(name, "Gather", {table.name, column});
    return name;
  }

  const ModelPlan& plan_;
  const TableValues& tables_;
  GraphBuilder& graph_;
  std::vector<std::string> first_layer_;
  std::vector<std::string> logits_;
};

// Adds layers to a graph, each taking what the one before it gave. There, images are [N, C, H, W].
class LayersWriter {
 public:
  // `value`: what the first layer takes.
  LayersWriter(std::span<const float> parameters, std::string value, bool is_image, GraphBuilder& graph)
      : parameters_(parameters), value_(std::move(value)), is_image_(is_image), graph_(graph) {}

  // One overload for each kind of layer.
  void Add(const DenseSpec& spec, const LayerPlan& layer) {
    if (is_image_) AddNode(spec.name, "Flatten", {});
    is_image_ = false;
    const TensorSpec& weights = layer.tensors[0].spec;
    const TensorSpec& bias = layer.tensors[1].spec;
    graph_.AddTensor(weights.name, {spec.outputs, layer.input.size()},
                     WeightsByChannel(layer.input, spec.outputs, ValuesOf(layer.tensors[0])));
    graph_.AddTensor(bias.name, bias.shape, ValuesOf(layer.tensors[1]));
    // OpenCV 4.6 knows a Gemm only with its second matrix transposed, as PyTorch writes it.
    AddInteger(AddNode(spec.name, "Gemm", {weights.name, bias.name}), "transB", 1);
    AddActivation(spec.name, spec.activation);
  }

  void Add(const ConvolutionSpec& spec, const LayerPlan& layer) {
    const TensorSpec& weights = layer.tensors[0].spec;
    const TensorSpec& bias = layer.tensors[1].spec;
    const SampleShape window = {
        .height = spec.kernel, .width = spec.kernel, .channels = layer.input.channels};
    graph_.AddTensor(weights.name, {spec.outputs, window.channels, spec.kernel, spec.kernel},
                     WeightsByChannel(window, spec.outputs, ValuesOf(layer.tensors[0])));
    graph_.AddTensor(bias.name, bias.shape, ValuesOf(layer.tensors[1]));
    onnx::Node& node = AddNode(spec.name, "Conv", {weights.name, bias.name});
    AddIntegers(node, "kernel_shape", {spec.kernel, spec.kernel});
    const int64_t zeros = spec.padding == Padding::kSame ? spec.kernel - 1 : 0;
    AddIntegers(node, "pads", {zeros / 2, zeros / 2, zeros - zeros / 2, zeros - zeros / 2});
    AddActivation(spec.name, spec.activation);
  }

  void Add(const MaxPoolSpec& spec, const LayerPlan&) {
    onnx::Node& node = AddNode(spec.name, "MaxPool", {});
    AddIntegers(node, "kernel_shape", {spec.window, spec.window});
    AddIntegers(node, "strides", {spec.window, spec.window});
  }

  void Add(const DropoutSpec&, const LayerPlan&) {}  // drops nothing outside of training

  // What the last layer gave.
  const std::string& value() const { return value_; }

 private:
  // A node that takes the value at hand and `tensors`, and gives the next one.
  onnx::Node& AddNode(const std::string& layer, const std::string& operation,
                      const std::vector<std::string>& tensors) {
    std::vector<std::string> inputs = {value_};
    inputs.insert(inputs.end(), tensors.begin(), tensors.end());
    value_ = layer + "/" + operation;
    return graph_.AddNode(value_, operation, inputs);
  }

  void AddActivation(const std::string& layer, Activation activation) {
    switch (activation) {
      case Activation::kNone:
        return;
      case Activation::kRelu:
        AddNode(layer, "Relu", {});
        return;
    }
    MUSTER_CHECK(false);
  }

  std::span<const float> ValuesOf(const LayoutTensor& tensor) const {
    return parameters_.subspan(tensor.offset, tensor.size);
  }

  const std::span<const float> parameters_;
  std::string value_;
  bool is_image_;  // [N, C, H, W], not [N, values]
  GraphBuilder& graph_;
};

void WriteGraph(const ModelPlan& plan, std::span<const float> parameters, const TableValues& tables,
                const std::vector<NumericFeature>& numbers, GraphBuilder& graph) {
  const bool is_image = plan.columns.empty();
  const SampleShape& input = plan.spec.input;
  ColumnsWriter columns(plan, tables, graph);
  if (is_image) {
    graph.AddInput(kImageName, onnx::Tensor::FLOAT, {input.channels, input.height, input.width});
  } else {
    MUSTER_CHECK(static_cast<int64_t>(numbers.size()) == input.size());
    columns.AddNumbers(numbers);
    for (const IdColumnPlan& column : plan.columns) {
      std::visit([&](const auto& spec) { columns.Add(spec, column); }, column.spec);
    }
  }
  std::optional<std::string> value;
  if (!plan.layers.empty()) {
    LayersWriter layers(parameters, is_image ? kImageName : columns.JoinFirstLayer(), is_image, graph);
    for (const LayerPlan& layer : plan.layers) {
      std::visit([&](const auto& spec) { layers.Add(spec, layer); }, layer.spec);
    }
    value = layers.value();
  }
  if (plan.wide_bias) {
    const LayoutTensor& bias = *plan.wide_bias;
    graph.AddTensor(bias.spec.name, bias.spec.shape, parameters.subspan(bias.offset, bias.size));
    columns.AddToLogits(bias.spec.name, value);
  }
  graph.SetOutput(kOutputName, {plan.outputs});
}

}  // namespace

std::vector<float> WeightsByChannel(const SampleShape& image, int64_t outputs,
                                    std::span<const float> weights) {
  MUSTER_CHECK(static_cast<int64_t>(weights.size()) == image.size() * outputs);
  const int64_t pixels = image.height * image.width;
  std::vector<float> transposed(weights.size());
  for (int64_t pixel = 0; pixel < pixels; ++pixel) {
    for (int64_t channel = 0; channel < image.channels; ++channel) {
      const float* const row = weights.data() + (pixel * image.channels + channel) * outputs;
      float* const column = transposed.data() + channel * pixels + pixel;
      for (int64_t output = 0; output < outputs; ++output) column[output * image.size()] = row[output];
    }
  }
  return transposed;
}

absl::Status CheckOnnxSize(const ModelPlan& plan) {
  int64_t floats = plan.layout.parameter_count();
  for (const TableSpec& table : plan.tables) floats += table.rows * table.width;
  const int64_t bytes = floats * static_cast<int64_t>(sizeof(float));
  if (bytes <= kMaxParameterBytes) return absl::OkStatus();
  return InvalidArgument("%d bytes of parameters are more than an ONNX file can hold", bytes);
}

absl::Status SaveOnnx(const std::filesystem::path& path, const ModelPlan& plan,
                      std::span<const float> parameters, const TableValues& tables,
                      const SavedModelInfo& info) {
  MUSTER_CHECK(static_cast<int64_t>(parameters.size()) == plan.layout.size());
  MUSTER_CHECK(tables.size() == plan.tables.size());
  MUSTER_RETURN_IF_ERROR(Annotate(CheckOnnxSize(plan), path.string()));
  onnx::Model model;
  model.set_ir_version(kIrVersion);
  model.set_producer_name("muster");
  model.set_producer_version(MUSTER_VERSION);
  model.add_opset_import()->set_version(kOperatorSet);
  for (const auto& [key, value] : ToMetadata(info)) {
    onnx::StringStringEntry& entry = *model.add_metadata_props();
    entry.set_key(key);
    entry.set_value(value);
  }
  model.mutable_graph()->set_name("muster");
  GraphBuilder graph(*model.mutable_graph());
  WriteGraph(plan, parameters, tables, info.features.numeric, graph);
  return WriteFileAtomically(path, model.SerializeAsString());
}

}  // namespace muster
