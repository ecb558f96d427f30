// Dense layers and the loss in double, as plainly as can be: what the fast versions are held against. For
// tests. Sizes and orders as in dense.h.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/dense.h"

namespace muster {

/// Of an operation with weights.
struct ReferenceGradients {
  std::vector<double> input, weights, bias;
};

std::vector<double> ReferenceDenseForward(const DenseShape& shape, std::span<const double> input,
                                          std::span<const double> weights, std::span<const double> bias);

ReferenceGradients ReferenceDenseBackward(const DenseShape& shape, std::span<const double> input,
                                          std::span<const double> weights,
                                          std::span<const double> output_gradient);

/// Zero below zero, in place.
void ReferenceRelu(std::span<double> values);

/// Zeroes the gradients whose activated value is zero, in place.
void ReferenceReluBackward(std::span<const double> activated, std::span<double> gradient);

/// The loss, and in `gradient` that of the logits.
double ReferenceSoftmaxCrossEntropy(int64_t classes, std::span<const double> logits,
                                    std::span<const int32_t> labels, std::vector<double>* gradient);
double ReferenceSigmoidCrossEntropy(std::span<const double> logits, std::span<const int32_t> labels,
                                    std::vector<double>* gradient);

}  // namespace muster
