// Id columns on a CUDA device: rows of tables and zeros with a one as inputs, wide columns, and the gradients
// and updates of the rows that a batch names.
//
// A batch has an index for each column and sample, in `indices` [columns, samples]: the row of the sample
// begins `index * step` floats behind `rows`. For a table as a whole that is an id, and the step its width;
// for packed rows (kernels/row_index.h) an offset, and the step 1. A negative index names no row: its sample
// becomes NaN, and its gradient goes nowhere. Any other is trusted to be within the table. Arrays are on the
// device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/optimizer_kind.h"
#include "kernels/optimizer_loops.h"

namespace muster::cuda {

/// What a column gives: `width` floats of each sample.
struct ColumnSource {
  enum class Kind : uint8_t {
    kRow,     // of a table
    kOneHot,  // zeros, and a one at the index
    kSample,  // row number s for sample s: features, which have no index
  };
  Kind kind = Kind::kRow;
  int32_t column = 0;  // of `indices`
  int32_t width = 0;
  int32_t begin = 0;  // where they go: columns [begin, begin + width) of the input
  const float* rows = nullptr;
  int64_t step = 0;
};

/// input [samples, stride], the parts of these columns, which are not more than 65,535.
cudaError_t FillInput(const ColumnSource* columns, int count, const int32_t* indices, int64_t samples,
                      int64_t stride, float* input, cudaStream_t stream);

/// sums [samples, width] = beginning [samples, width], or zeros if that is null, + bias [width] + the row of
/// each column, in their order. All of kRow and one width; `sums` may be `beginning`.
cudaError_t AddWideColumns(const ColumnSource* columns, int count, const int32_t* indices, int64_t samples,
                           int64_t width, const float* beginning, const float* bias, float* sums,
                           cudaStream_t stream);

/// Where the gradient of a table's rows comes from: that of the loss with respect to columns
/// [begin, begin + width) of a matrix [samples, stride], to which the rows were added.
struct RowGradient {
  const float* matrix = nullptr;
  int64_t stride = 0;
  int32_t begin = 0;
  int32_t width = 0;
  int32_t column = 0;  // of `indices`; of no other table
};

/// packed[index + i], for each row that an index (an offset in packed rows) names: the sum of the gradient of
/// its float i over the samples that name it; overwritten.
///
/// The warp of the first sample that names a row adds up all of them, in an order that follows from their
/// numbers, so the bits are the same on every call, without atomic additions. It compares its index with all
/// others of the column, the warps of the later samples with those up to the first: for R different rows
/// about 2 R * samples comparisons, 32 at a time. Any number of samples is right, but costs that.
cudaError_t SumRowGradients(const RowGradient* gradients, int count, const int32_t* indices, int64_t samples,
                            float* packed, cudaStream_t stream);

/// A table as a whole with its optimizer. Numbers that this one does not read may be anything.
struct RowUpdate {
  OptimizerKind kind = OptimizerKind::kSgd;
  bool nesterov = false;
  int32_t tensor = 0;   // what UpdateRows calls it
  int32_t factors = 0;  // which of the step's
  float scale = 1;      // of gradient sums
  float weight_decay = 0;
  float momentum = 0;
  float l1 = 0;
  float twice_l2 = 0;
  float* values = nullptr;       // [rows, width]
  float* first_slot = nullptr;   // the same; null if the optimizer has none
  float* second_slot = nullptr;  // the same
};

/// One update, as Optimizer::ApplyRows, of the rows that the indices (ids) name, by their gradients as
/// SumRowGradients has them: updates[i] with gradients[i]. Rows that are not named stay as they are.
/// *first_bad becomes the least `tensor` of a row whose gradient is not finite, if less than it was.
cudaError_t UpdateRows(const RowGradient* gradients, const RowUpdate* updates, int count,
                       const int32_t* indices, int64_t samples, const StepFactors* factors,
                       int32_t* first_bad, cudaStream_t stream);

}  // namespace muster::cuda
