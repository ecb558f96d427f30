// Sums of the rows that the samples of a batch name, and their sparse gradient, on the CPU.
//
// The rows are packed, each of them once (row_index.h). Sums are in order of the samples, so the same bits
// come out however many threads there are. Sizes that do not fit together are a bug. Any thread may call,
// with outputs of its own.
#pragma once

#include <cstdint>
#include <span>

namespace muster {

/// One row for each of offsets.size() samples, added to a part of what the sample has: columns [begin,
/// begin + width) of a matrix of `stride` columns.
struct EmbeddingShape {
  int64_t width = 0;
  int64_t stride = 0;
  int64_t begin = 0;
};

/// output [samples, stride]: output[s, begin + i] += rows[offsets[s] + i] for i < width. A sum of several
/// columns is several calls.
void EmbeddingSum(const EmbeddingShape& shape, std::span<const int32_t> offsets, std::span<const float> rows,
                  std::span<float> output);

/// rows_gradient[offsets[s] + i] += output_gradient[s, begin + i].
void EmbeddingSumBackward(const EmbeddingShape& shape, std::span<const int32_t> offsets,
                          std::span<const float> output_gradient, std::span<float> rows_gradient);

/// output[s, begin + ids[s * id_stride]] += 1: an id as zeros and a one. ids below `width`.
void OneHot(const EmbeddingShape& shape, std::span<const int32_t> ids, int64_t id_stride,
            std::span<float> output);

}  // namespace muster
