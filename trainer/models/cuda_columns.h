// The id columns of a model on a CUDA device: what cpu_columns.h is on the CPU.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/cuda/embedding.h"
#include "trainer/models/cuda_layer.h"

namespace muster {

/// Where the rows of a table lie on the device: index i of a batch means what begins at rows + i * step.
struct RowsOnDevice {
  const float* rows = nullptr;
  int64_t step = 0;
};

/// What the columns read, on the device, for as long as they are used.
struct CudaColumnsContext {
  int64_t largest_batch = 0;
  std::span<const RowsOnDevice> tables;    // by table of the plan
  const float* features = nullptr;         // [samples, feature count]
  const float* input_gradient = nullptr;   // [samples, input size]: of the first layer's input
  const float* logits_gradient = nullptr;  // [samples, outputs]
};

/// Enqueues on the pass's stream. One thread at a time.
class CudaColumns {
 public:
  static absl::StatusOr<std::unique_ptr<CudaColumns>> Create(const ModelPlan& plan,
                                                             const CudaColumnsContext& context);

  /// [columns, samples of the pass], to be written before it: ids, and for the columns of tables indices.
  int32_t* indices() const { return indices_.data(); }

  /// input [samples, input size]: the features, and behind them embeddings and one-hot ids.
  absl::Status FillInput(const CudaPass& pass, float* input);

  /// logits [samples, outputs] = beginning, or zeros if that is null, + the wide columns and their bias;
  /// `logits` may be `beginning`. Nothing where there are no wide columns.
  absl::Status AddWide(const CudaPass& pass, const float* parameters, const float* beginning, float* logits);

  /// By table: where the gradients of its rows come from, once the backward pass is done. On the device.
  const cuda::RowGradient* row_gradients() const { return row_gradients_.data(); }
  int table_count() const { return static_cast<int>(row_gradients_.size()); }

 private:
  CudaColumns() = default;

  int64_t input_size_ = 0;
  int64_t outputs_ = 0;
  int64_t wide_bias_ = 0;  // offset in the parameters
  cuda::DeviceArray<int32_t> indices_;
  cuda::DeviceArray<cuda::ColumnSource> input_;
  cuda::DeviceArray<cuda::ColumnSource> wide_;
  cuda::DeviceArray<cuda::RowGradient> row_gradients_;
};

}  // namespace muster
