#include "trainer/models/cuda_columns.h"

#include <vector>

namespace muster {
namespace {

using Kind = cuda::ColumnSource::Kind;

int64_t InputSize(const ModelPlan& plan) {
  return plan.layers.empty() ? 0 : plan.layers.front().input.size();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaColumns>> CudaColumns::Create(const ModelPlan& plan,
                                                                 const CudaColumnsContext& context) {
  MUSTER_CHECK(context.tables.size() == plan.tables.size());
  std::unique_ptr<CudaColumns> columns(new CudaColumns());
  columns->input_size_ = InputSize(plan);
  columns->outputs_ = plan.outputs;
  if (plan.wide_bias) columns->wide_bias_ = plan.wide_bias->offset;
  std::vector<cuda::ColumnSource> input, wide;
  std::vector<cuda::RowGradient> row_gradients(plan.tables.size());
  const auto features = static_cast<int32_t>(plan.spec.input.size());
  if (features > 0 && columns->input_size_ > 0) {
    input.push_back({.kind = Kind::kSample, .width = features, .rows = context.features, .step = features});
  }
  for (size_t i = 0; i < plan.columns.size(); ++i) {
    const IdColumnPlan& column = plan.columns[i];
    cuda::ColumnSource source{.column = static_cast<int32_t>(i),
                              .begin = static_cast<int32_t>(column.input_begin)};
    if (const auto* const one_hot = std::get_if<OneHotColumnSpec>(&column.spec)) {
      source.kind = Kind::kOneHot;
      source.width = static_cast<int32_t>(one_hot->buckets);
      input.push_back(source);
      continue;
    }
    const bool is_wide = std::holds_alternative<WideColumnSpec>(column.spec);
    if (is_wide) source.begin = 0;
    source.width = static_cast<int32_t>(plan.tables[column.table].width);
    source.rows = context.tables[column.table].rows;
    source.step = context.tables[column.table].step;
    (is_wide ? wide : input).push_back(source);
    row_gradients[column.table] = {.matrix = is_wide ? context.logits_gradient : context.input_gradient,
                                   .stride = is_wide ? plan.outputs : columns->input_size_,
                                   .begin = source.begin,
                                   .width = source.width,
                                   .column = source.column};
  }
  const auto column_count = static_cast<int64_t>(plan.columns.size());
  MUSTER_ASSIGN_OR_RETURN(columns->indices_,
                          cuda::DeviceArray<int32_t>::Create(column_count * context.largest_batch));
  MUSTER_ASSIGN_OR_RETURN(columns->input_, cuda::CopyToDevice<cuda::ColumnSource>(input));
  MUSTER_ASSIGN_OR_RETURN(columns->wide_, cuda::CopyToDevice<cuda::ColumnSource>(wide));
  MUSTER_ASSIGN_OR_RETURN(columns->row_gradients_, cuda::CopyToDevice<cuda::RowGradient>(row_gradients));
  return columns;
}

absl::Status CudaColumns::FillInput(const CudaPass& pass, float* input) {
  MUSTER_CUDA_RETURN_IF_ERROR(cuda::FillInput(input_.data(), static_cast<int>(input_.size()), indices(),
                                              pass.samples, input_size_, input, pass.stream));
  return absl::OkStatus();
}

absl::Status CudaColumns::AddWide(const CudaPass& pass, const float* parameters, const float* beginning,
                                  float* logits) {
  if (wide_.size() == 0) return absl::OkStatus();
  MUSTER_CUDA_RETURN_IF_ERROR(cuda::AddWideColumns(wide_.data(), static_cast<int>(wide_.size()), indices(),
                                                   pass.samples, outputs_, beginning, parameters + wide_bias_,
                                                   logits, pass.stream));
  return absl::OkStatus();
}

}  // namespace muster
