#include "trainer/models/cuda_tables.h"

#include <algorithm>
#include <numeric>

namespace muster {
namespace {

// The values of a table that nothing has updated, some rows at a time.
absl::StatusOr<cuda::DeviceArray<float>> CopyInitialValues(const TableSpec& spec,
                                                           const ParameterTable& table) {
  constexpr int64_t kRowsAtATime = 1 << 16;
  MUSTER_ASSIGN_OR_RETURN(auto values, cuda::DeviceArray<float>::Create(spec.rows * spec.width));
  std::vector<int64_t> ids;
  std::vector<float> part;
  for (int64_t begin = 0; begin < spec.rows; begin += kRowsAtATime) {
    ids.resize(std::min(kRowsAtATime, spec.rows - begin));
    std::iota(ids.begin(), ids.end(), begin);
    part.resize(ids.size() * spec.width);
    table.Read(ids, part);
    MUSTER_CUDA_RETURN_IF_ERROR(cudaMemcpy(values.data() + begin * spec.width, part.data(),
                                           part.size() * sizeof(float), cudaMemcpyHostToDevice));
  }
  MUSTER_CUDA_RETURN_IF_ERROR(cudaDeviceSynchronize());  // as in CopyToDevice
  return values;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaTables>> CudaTables::Create(std::span<const TableSpec> specs,
                                                               std::span<const OptimizerConfig> by_group,
                                                               float gradient_scale, uint64_t seed,
                                                               int32_t first_number) {
  MUSTER_ASSIGN_OR_RETURN(const std::vector<ParameterTable> initial, MakeTables(specs, by_group, seed));
  std::unique_ptr<CudaTables> tables(new CudaTables());
  std::vector<cuda::RowUpdate> updates;
  for (size_t i = 0; i < specs.size(); ++i) {
    const TableSpec& spec = specs[i];
    const OptimizerConfig& config = by_group[spec.optimizer_group];
    Table table{.width = spec.width};
    MUSTER_ASSIGN_OR_RETURN(table.values, CopyInitialValues(spec, initial[i]));
    MUSTER_ASSIGN_OR_RETURN(table.slots, SlotsOnDevice::Create(config, table.values.size()));
    updates.push_back({.kind = config.kind,
                       .nesterov = config.nesterov,
                       .tensor = first_number + static_cast<int32_t>(i),
                       .factors = spec.optimizer_group,
                       .scale = gradient_scale,
                       .weight_decay = config.weight_decay,
                       .momentum = config.momentum,
                       .l1 = config.l1,
                       .twice_l2 = 2 * config.l2,
                       .values = table.values.data(),
                       .first_slot = table.slots.first.data(),
                       .second_slot = table.slots.second.data()});
    tables->tables_.push_back(std::move(table));
  }
  MUSTER_ASSIGN_OR_RETURN(tables->updates_, cuda::CopyToDevice<cuda::RowUpdate>(updates));
  return tables;
}

std::vector<RowsOnDevice> CudaTables::rows() const {
  std::vector<RowsOnDevice> rows;
  for (const Table& table : tables_) rows.push_back({.rows = table.values.data(), .step = table.width});
  return rows;
}

absl::Status CudaTables::Update(const CudaColumns& columns, int64_t samples, const StepFactors* factors,
                                int32_t* first_bad, cudaStream_t stream) {
  MUSTER_CHECK(columns.table_count() == static_cast<int>(tables_.size()));
  MUSTER_CUDA_RETURN_IF_ERROR(cuda::UpdateRows(columns.row_gradients(), updates_.data(),
                                               columns.table_count(), columns.indices(), samples, factors,
                                               first_bad, stream));
  return absl::OkStatus();
}

absl::StatusOr<TableValues> CudaTables::Read(cudaStream_t stream) const {
  MUSTER_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream));
  TableValues values;
  for (const Table& table : tables_) {
    values.emplace_back(table.values.size());
    MUSTER_CUDA_RETURN_IF_ERROR(
        cudaMemcpy(values.back().data(), table.values.data(), table.values.bytes(), cudaMemcpyDeviceToHost));
  }
  return values;
}

}  // namespace muster
