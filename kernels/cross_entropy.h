// Losses of classifiers and their gradients.
//
// Sums over the batch, never means. What is not finite stays visible: a NaN in a logit reaches the loss and
// the gradient. No libm but for one logarithm a sample.
#pragma once

#include <cstdint>
#include <span>

namespace muster {

struct LossResult {
  double loss_sum = 0;
  int64_t correct = 0;  // samples predicted as labelled; none whose logits have a NaN
};

/// Cross-entropy of softmax(logits [batch, classes]) with labels [batch], each in [0, classes), and its
/// gradient with respect to the logits ([batch, classes]; may be `logits` itself). The largest logit is
/// subtracted first, so that finite logits never overflow; the first of equals is what is predicted.
LossResult SoftmaxCrossEntropy(int64_t classes, std::span<const float> logits,
                               std::span<const int32_t> labels, std::span<float> gradient);

/// Cross-entropy of sigmoid(logits [batch]) with labels [batch], each 0 or 1, and its gradient ([batch]; may
/// be `logits` itself). A logit above 0 predicts 1.
LossResult SigmoidCrossEntropy(std::span<const float> logits, std::span<const int32_t> labels,
                               std::span<float> gradient);

}  // namespace muster
