#include "kernels/cross_entropy.h"

#include <algorithm>
#include <cmath>

#include "base/status.h"
#include "kernels/elementwise.h"

namespace muster {
namespace {

// Rows at a time: enough for the passes over all of them to run in vectors, few enough for a stack.
constexpr int64_t kChunkRows = 64;

}  // namespace

LossResult SoftmaxCrossEntropy(int64_t classes, std::span<const float> logits,
                               std::span<const int32_t> labels, std::span<float> gradient) {
  const int64_t batch = static_cast<int64_t>(labels.size());
  MUSTER_CHECK(static_cast<int64_t>(logits.size()) == batch * classes && gradient.size() == logits.size());
  LossResult result;
  for (int64_t begin = 0; begin < batch; begin += kChunkRows) {
    const int64_t rows = std::min(kChunkRows, batch - begin);
    double label_logits[kChunkRows];  // less the row's largest
    bool hits[kChunkRows];
    for (int64_t row = 0; row < rows; ++row) {
      const float* const x = logits.data() + (begin + row) * classes;
      float* const dx = gradient.data() + (begin + row) * classes;
      const int32_t label = labels[begin + row];
      MUSTER_CHECK(label >= 0 && label < classes);
      const int64_t largest = std::max_element(x, x + classes) - x;
      const float shift = x[largest];
      label_logits[row] = double{x[label]} - double{shift};
      hits[row] = largest == label;
      for (int64_t i = 0; i < classes; ++i) dx[i] = x[i] - shift;
    }
    Exponentials(gradient.subspan(begin * classes, rows * classes));
    for (int64_t row = 0; row < rows; ++row) {
      float* const dx = gradient.data() + (begin + row) * classes;
      double sum = 0;
      for (int64_t i = 0; i < classes; ++i) sum += dx[i];
      const double loss = std::log(sum) - label_logits[row];
      result.loss_sum += loss;
      result.correct += hits[row] && !std::isnan(loss);
      const float inverse = static_cast<float>(1 / sum);
      for (int64_t i = 0; i < classes; ++i) dx[i] *= inverse;
      dx[labels[begin + row]] -= 1;
    }
  }
  return result;
}

LossResult SigmoidCrossEntropy(std::span<const float> logits, std::span<const int32_t> labels,
                               std::span<float> gradient) {
  const int64_t batch = static_cast<int64_t>(labels.size());
  MUSTER_CHECK(logits.size() == labels.size() && gradient.size() == labels.size());
  LossResult result;
  for (int64_t begin = 0; begin < batch; begin += kChunkRows) {
    const int64_t rows = std::min(kChunkRows, batch - begin);
    float x[kChunkRows], exponentials[kChunkRows];  // of -|x|, which never overflows
    for (int64_t row = 0; row < rows; ++row) {
      x[row] = logits[begin + row];
      exponentials[row] = -std::abs(x[row]);
    }
    Exponentials({exponentials, static_cast<size_t>(rows)});
    for (int64_t row = 0; row < rows; ++row) {
      const int32_t label = labels[begin + row];
      MUSTER_CHECK(label == 0 || label == 1);
      const double e = exponentials[row];
      // log(1 + exp(x)) - label * x, where x > 0 written as x + log(1 + exp(-x)).
      result.loss_sum += std::log1p(e) + double{x[row] > 0 ? x[row] : 0} - double{x[row]} * label;
      result.correct += label == 1 ? x[row] > 0 : x[row] <= 0;  // false for NaN
      const double probability = x[row] > 0 ? 1 / (1 + e) : e / (1 + e);
      gradient[begin + row] = static_cast<float>(probability - label);
    }
  }
  return result;
}

}  // namespace muster
