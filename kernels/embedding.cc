#include "kernels/embedding.h"

#include <type_traits>

#include "base/status.h"

namespace muster {
namespace {

void Check(const EmbeddingShape& shape, int64_t samples, int64_t matrix_size) {
  MUSTER_CHECK(shape.width > 0 && shape.begin >= 0 && shape.begin + shape.width <= shape.stride);
  MUSTER_CHECK(matrix_size == samples * shape.stride);
}

// Rows are short: a width known to the compiler is worth more than vectors of the widest kind. Calls
// body(width).
template <typename Body>
void WithWidth(int64_t width, Body body) {
  switch (width) {
    case 1:
      return body(std::integral_constant<int64_t, 1>());
    case 8:
      return body(std::integral_constant<int64_t, 8>());
    default:
      return body(width);
  }
}

}  // namespace

void EmbeddingSum(const EmbeddingShape& shape, std::span<const int32_t> offsets, std::span<const float> rows,
                  std::span<float> output) {
  Check(shape, static_cast<int64_t>(offsets.size()), static_cast<int64_t>(output.size()));
  WithWidth(shape.width, [&](auto width) {
    float* __restrict to = output.data() + shape.begin;
    for (const int32_t offset : offsets) {
      MUSTER_CHECK(offset >= 0 && offset + width <= static_cast<int64_t>(rows.size()));
      const float* const from = rows.data() + offset;
      for (int64_t i = 0; i < width; ++i) to[i] += from[i];
      to += shape.stride;
    }
  });
}

void EmbeddingSumBackward(const EmbeddingShape& shape, std::span<const int32_t> offsets,
                          std::span<const float> output_gradient, std::span<float> rows_gradient) {
  Check(shape, static_cast<int64_t>(offsets.size()), static_cast<int64_t>(output_gradient.size()));
  WithWidth(shape.width, [&](auto width) {
    const float* __restrict from = output_gradient.data() + shape.begin;
    for (const int32_t offset : offsets) {
      MUSTER_CHECK(offset >= 0 && offset + width <= static_cast<int64_t>(rows_gradient.size()));
      float* const to = rows_gradient.data() + offset;
      for (int64_t i = 0; i < width; ++i) to[i] += from[i];
      from += shape.stride;
    }
  });
}

void OneHot(const EmbeddingShape& shape, std::span<const int32_t> ids, int64_t id_stride,
            std::span<float> output) {
  MUSTER_CHECK(id_stride > 0);
  const int64_t samples = static_cast<int64_t>(output.size()) / shape.stride;
  Check(shape, samples, static_cast<int64_t>(output.size()));
  MUSTER_CHECK(samples == 0 || static_cast<int64_t>(ids.size()) > (samples - 1) * id_stride);
  for (int64_t s = 0; s < samples; ++s) {
    const int64_t id = ids[s * id_stride];
    MUSTER_CHECK(id >= 0 && id < shape.width, "an id out of range");
    output[s * shape.stride + shape.begin + id] += 1;
  }
}

}  // namespace muster
