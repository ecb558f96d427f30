// The tables of a model on a CUDA device, with their optimizers.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cuda/embedding.h"
#include "kernels/parameter_table.h"
#include "trainer/models/cuda_columns.h"
#include "trainer/models/cuda_optimizer.h"
#include "trainer/models/row_source.h"

namespace muster {

/// All rows of each table, from the beginning, and as ParameterTable has them. One thread at a time.
class CudaTables {
 public:
  /// by_group, gradient_scale: as for CudaOptimizer, which has not refused them. `first_number`: of the first
  /// table, in first_bad. Fails as ValidateTables does.
  static absl::StatusOr<std::unique_ptr<CudaTables>> Create(std::span<const TableSpec> specs,
                                                            std::span<const OptimizerConfig> by_group,
                                                            float gradient_scale, uint64_t seed,
                                                            int32_t first_number);

  /// By table; an index is an id.
  std::vector<RowsOnDevice> rows() const;

  /// Enqueues one step's update. On the device: what CudaColumns has, the optimizers' factors of this step by
  /// group, first_bad as UpdateRows has it.
  absl::Status Update(const CudaColumns& columns, int64_t samples, const StepFactors* factors,
                      int32_t* first_bad, cudaStream_t stream);

  /// After everything on `stream`.
  absl::StatusOr<TableValues> Read(cudaStream_t stream) const;

 private:
  struct Table {
    int64_t width = 0;
    cuda::DeviceArray<float> values;  // [rows, width]
    SlotsOnDevice slots;
  };

  CudaTables() = default;

  std::vector<Table> tables_;
  cuda::DeviceArray<cuda::RowUpdate> updates_;
};

}  // namespace muster
