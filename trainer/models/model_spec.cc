#include "trainer/models/model_spec.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/max_pool.h"

namespace muster {
namespace {

// What one kind of layer makes of the shape it is given.
struct Resolved {
  SampleShape output;
  std::vector<TensorSpec> tensors;
};

TensorSpec BiasTensor(const std::string& layer, int64_t size, float value) {
  return {.name = layer + "/bias",
          .shape = {size},
          .initializer = value == 0 ? Initializer::kZeros : Initializer::kConstant,
          .scale = value};
}

absl::StatusOr<Resolved> Resolve(const DenseSpec& spec, const SampleShape& input) {
  if (spec.outputs < 1) return InvalidArgument("%s: a layer of size %d; at least 1", spec.name, spec.outputs);
  return Resolved{.output = {.channels = spec.outputs},
                  .tensors = {{.name = spec.name + "/weights",
                               .shape = {input.size(), spec.outputs},
                               .initializer = spec.initializer,
                               .scale = spec.scale},
                              BiasTensor(spec.name, spec.outputs, spec.initial_bias)}};
}

absl::StatusOr<Resolved> Resolve(const ConvolutionSpec& spec, const SampleShape& input) {
  if (spec.outputs < 1) return InvalidArgument("%s: a layer of size %d; at least 1", spec.name, spec.outputs);
  if (spec.kernel < 1) return InvalidArgument("%s: a kernel of size %d; at least 1", spec.name, spec.kernel);
  SampleShape output = {.height = input.height, .width = input.width, .channels = spec.outputs};
  if (spec.padding == Padding::kValid) {
    if (spec.kernel > std::min(input.height, input.width)) {
      return InvalidArgument("%s: a kernel of size %d on an image of %d x %d", spec.name, spec.kernel,
                             input.height, input.width);
    }
    output.height -= spec.kernel - 1;
    output.width -= spec.kernel - 1;
  }
  return Resolved{.output = output,
                  .tensors = {{.name = spec.name + "/weights",
                               .shape = {spec.kernel, spec.kernel, input.channels, spec.outputs},
                               .initializer = spec.initializer,
                               .scale = spec.scale},
                              BiasTensor(spec.name, spec.outputs, spec.initial_bias)}};
}

absl::StatusOr<Resolved> Resolve(const MaxPoolSpec& spec, const SampleShape& input) {
  if (spec.window < 1 || spec.window > kLargestPoolWindow) {
    return InvalidArgument("%s: a window of size %d; from 1 to %d", spec.name, spec.window,
                           kLargestPoolWindow);
  }
  if (spec.window > std::min(input.height, input.width)) {
    return InvalidArgument("%s: a window of size %d on an image of %d x %d", spec.name, spec.window,
                           input.height, input.width);
  }
  return Resolved{.output = {.height = input.height / spec.window,
                             .width = input.width / spec.window,
                             .channels = input.channels}};
}

absl::StatusOr<Resolved> Resolve(const DropoutSpec& spec, const SampleShape& input) {
  if (!(spec.rate >= 0 && spec.rate < 1)) {
    return InvalidArgument("%s: a rate of %g; at least 0 and below 1", spec.name, spec.rate);
  }
  return Resolved{.output = input};
}

// What one kind of id column brings.
struct ResolvedColumn {
  int64_t inputs = 0;              // of the first layer
  std::optional<TableSpec> table;  // without its group, and a wide one's without its width
};

absl::StatusOr<ResolvedColumn> Resolve(const WideColumnSpec& spec) {
  return ResolvedColumn{.table = TableSpec{.name = "wide/" + spec.name, .rows = spec.buckets}};
}

// TensorFlow's embedding_column draws its first values like this.
absl::StatusOr<ResolvedColumn> Resolve(const EmbeddingColumnSpec& spec) {
  return ResolvedColumn{.inputs = spec.width,
                        .table = TableSpec{.name = "deep/" + spec.name,
                                           .rows = spec.buckets,
                                           .width = spec.width,
                                           .initializer = Initializer::kTruncatedNormal,
                                           .scale = 1 / std::sqrt(static_cast<float>(spec.width))}};
}

absl::StatusOr<ResolvedColumn> Resolve(const OneHotColumnSpec& spec) {
  if (spec.buckets < 1) return InvalidArgument("id column '%s' has %d buckets", spec.name, spec.buckets);
  return ResolvedColumn{.inputs = spec.buckets};
}

bool IsWide(const IdColumnSpec& spec) { return std::holds_alternative<WideColumnSpec>(spec); }

}  // namespace

std::vector<int> ModelPlan::TableColumns() const {
  std::vector<int> result(tables.size());
  for (size_t i = 0; i < columns.size(); ++i) {
    if (columns[i].table >= 0) result[columns[i].table] = static_cast<int>(i);
  }
  return result;
}

absl::StatusOr<ModelPlan> PlanModel(ModelSpec spec) {
  const bool has_wide = std::any_of(spec.columns.begin(), spec.columns.end(), IsWide);
  MUSTER_CHECK(has_wide || !spec.layers.empty());
  MUSTER_CHECK(spec.columns.empty() || spec.input.size() == spec.input.channels);
  ModelPlan plan{.spec = std::move(spec), .outputs = 1};
  SampleShape shape = plan.spec.input;
  for (const IdColumnSpec& column : plan.spec.columns) {
    MUSTER_ASSIGN_OR_RETURN(ResolvedColumn resolved,
                            std::visit([](const auto& kind) { return Resolve(kind); }, column));
    plan.columns.push_back({.spec = column, .input_begin = shape.channels});
    shape.channels += resolved.inputs;
    if (!resolved.table) continue;
    plan.columns.back().table = static_cast<int>(plan.tables.size());
    plan.tables.push_back(*std::move(resolved.table));
  }
  std::vector<TensorSpec> tensors;
  std::vector<size_t> tensor_counts;
  for (const LayerSpec& layer : plan.spec.layers) {
    MUSTER_ASSIGN_OR_RETURN(Resolved resolved,
                            std::visit([&](const auto& kind) { return Resolve(kind, shape); }, layer));
    plan.layers.push_back({.spec = layer, .input = shape, .output = resolved.output});
    tensor_counts.push_back(resolved.tensors.size());
    for (TensorSpec& tensor : resolved.tensors) tensors.push_back(std::move(tensor));
    shape = resolved.output;
    plan.outputs = shape.size();
  }
  if (has_wide) {
    tensors.push_back(
        {.name = "wide/bias", .shape = {plan.outputs}, .optimizer_group = plan.spec.wide_optimizer_group});
  }
  for (const IdColumnPlan& column : plan.columns) {
    if (!IsWide(column.spec)) continue;
    plan.tables[column.table].width = plan.outputs;
    plan.tables[column.table].optimizer_group = plan.spec.wide_optimizer_group;
  }
  MUSTER_RETURN_IF_ERROR(ValidateTables(plan.tables, plan.optimizer_group_count()));
  MUSTER_ASSIGN_OR_RETURN(plan.layout, ParameterLayout::Create(std::move(tensors)));
  for (const LayoutTensor& tensor : plan.layout.tensors()) {
    const auto same_name = [&](const TableSpec& table) { return table.name == tensor.spec.name; };
    if (std::any_of(plan.tables.begin(), plan.tables.end(), same_name)) {
      return InvalidArgument("a tensor and a table are named '%s'", tensor.spec.name);
    }
  }
  auto next = plan.layout.tensors().begin();
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    plan.layers[i].tensors.assign(next, next + static_cast<int64_t>(tensor_counts[i]));
    next += static_cast<int64_t>(tensor_counts[i]);
  }
  if (has_wide) plan.wide_bias = *next;
  return plan;
}

}  // namespace muster
