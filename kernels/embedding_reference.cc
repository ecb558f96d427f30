#include "kernels/embedding_reference.h"

namespace muster {

std::vector<double> ReferenceEmbeddingSum(const EmbeddingShape& shape, std::span<const int32_t> offsets,
                                          std::span<const double> rows, std::vector<double> output) {
  for (size_t s = 0; s < offsets.size(); ++s) {
    for (int64_t i = 0; i < shape.width; ++i) {
      output[s * shape.stride + shape.begin + i] += rows[offsets[s] + i];
    }
  }
  return output;
}

std::vector<double> ReferenceEmbeddingSumBackward(const EmbeddingShape& shape,
                                                  std::span<const int32_t> offsets,
                                                  std::span<const double> output_gradient,
                                                  std::vector<double> rows_gradient) {
  for (size_t s = 0; s < offsets.size(); ++s) {
    for (int64_t i = 0; i < shape.width; ++i) {
      rows_gradient[offsets[s] + i] += output_gradient[s * shape.stride + shape.begin + i];
    }
  }
  return rows_gradient;
}

}  // namespace muster
