// The operations of embedding.h in double, plainly.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/embedding.h"

namespace muster {

/// What EmbeddingSum makes of `output`.
std::vector<double> ReferenceEmbeddingSum(const EmbeddingShape& shape, std::span<const int32_t> offsets,
                                          std::span<const double> rows, std::vector<double> output);

/// What EmbeddingSumBackward makes of `rows_gradient`.
std::vector<double> ReferenceEmbeddingSumBackward(const EmbeddingShape& shape,
                                                  std::span<const int32_t> offsets,
                                                  std::span<const double> output_gradient,
                                                  std::vector<double> rows_gradient);

}  // namespace muster
