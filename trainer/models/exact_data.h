// Parameters and samples of tests that floats compute with exactly.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "trainer/data/batch.h"
#include "trainer/models/model_spec.h"

namespace muster {

/// Parameters of -1/2, 0 and 1/2, of which about eight per unit are not zero. With features that are
/// multiples of 1/16 up to 1, the values of a few layers are whole multiples of a power of two and need fewer
/// bits than a float has, so that any order of summing gives the same logits, and every choice of ReLU and
/// pooling is the same in float and in double.
inline std::vector<float> ExactParameters(const ParameterLayout& layout, uint64_t seed) {
  std::vector<float> parameters(layout.size());
  RandomStream random(seed);
  for (const LayoutTensor& tensor : layout.tensors()) {
    const int64_t terms = tensor.size / tensor.spec.shape.back();  // of the sum of one unit; 1 for a bias
    const double share = std::min(1.0, 8.0 / static_cast<double>(terms));
    for (int64_t i = 0; i < tensor.size; ++i) {
      const bool is_zero = random.NextDouble() >= share;
      const float sign = random.NextBelow(2) == 0 ? -0.5f : 0.5f;
      parameters[tensor.offset + i] = is_zero ? 0 : sign;
    }
  }
  return parameters;
}

/// Random features for ExactParameters, and labels; the training position is past 2^32.
class ExactBatch {
 public:
  ExactBatch(uint64_t seed, int64_t samples, int64_t feature_count, int64_t classes)
      : features_(samples * feature_count), labels_(samples) {
    RandomStream random(seed);
    for (float& feature : features_) feature = static_cast<float>(random.NextBelow(17)) / 16;
    for (int32_t& label : labels_) label = static_cast<int32_t>(random.NextBelow(classes));
  }
  Batch batch() const {
    return {.features = features_, .labels = labels_, .position = (int64_t{1} << 32) + 5};
  }

 private:
  std::vector<float> features_;
  std::vector<int32_t> labels_;
};

}  // namespace muster
