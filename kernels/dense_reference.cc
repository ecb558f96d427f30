#include "kernels/dense_reference.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>

namespace muster {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Eigen::Map<const Matrix> Rows(std::span<const double> values, int64_t rows, int64_t columns) {
  return {values.data(), rows, columns};
}

Eigen::Map<Matrix> Rows(std::vector<double>& values, int64_t rows, int64_t columns) {
  return {values.data(), rows, columns};
}

}  // namespace

std::vector<double> ReferenceDenseForward(const DenseShape& shape, std::span<const double> input,
                                          std::span<const double> weights, std::span<const double> bias) {
  const auto [batch, inputs, outputs] = shape;
  std::vector<double> output(batch * outputs);
  Rows(output, batch, outputs) =
      (Rows(input, batch, inputs) * Rows(weights, inputs, outputs)).rowwise() + Rows(bias, 1, outputs).row(0);
  return output;
}

ReferenceGradients ReferenceDenseBackward(const DenseShape& shape, std::span<const double> input,
                                          std::span<const double> weights,
                                          std::span<const double> output_gradient) {
  const auto [batch, inputs, outputs] = shape;
  ReferenceGradients gradients{.input = std::vector<double>(input.size()),
                               .weights = std::vector<double>(weights.size()),
                               .bias = std::vector<double>(outputs)};
  const auto dy = Rows(output_gradient, batch, outputs);
  Rows(gradients.input, batch, inputs) = dy * Rows(weights, inputs, outputs).transpose();
  Rows(gradients.weights, inputs, outputs) = Rows(input, batch, inputs).transpose() * dy;
  Rows(gradients.bias, 1, outputs) = dy.colwise().sum();
  return gradients;
}

void ReferenceRelu(std::span<double> values) {
  for (double& value : values) value = value < 0 ? 0 : value;
}

void ReferenceReluBackward(std::span<const double> activated, std::span<double> gradient) {
  for (size_t i = 0; i < gradient.size(); ++i) gradient[i] = activated[i] == 0 ? 0 : gradient[i];
}

double ReferenceSoftmaxCrossEntropy(int64_t classes, std::span<const double> logits,
                                    std::span<const int32_t> labels, std::vector<double>* gradient) {
  double loss = 0;
  gradient->assign(logits.size(), 0);
  for (size_t row = 0; row < labels.size(); ++row) {
    const std::span<const double> x = logits.subspan(row * classes, classes);
    const double shift = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (const double value : x) sum += std::exp(value - shift);
    loss += std::log(sum) - (x[labels[row]] - shift);
    for (int64_t i = 0; i < classes; ++i) {
      (*gradient)[row * classes + i] = std::exp(x[i] - shift) / sum - (i == labels[row] ? 1 : 0);
    }
  }
  return loss;
}

double ReferenceSigmoidCrossEntropy(std::span<const double> logits, std::span<const int32_t> labels,
                                    std::vector<double>* gradient) {
  double loss = 0;
  gradient->assign(logits.size(), 0);
  for (size_t i = 0; i < labels.size(); ++i) {
    // log(1 + exp(x)) - x label, with an exponential that cannot overflow.
    const double x = logits[i];
    loss += std::max(x, 0.0) - x * labels[i] + std::log1p(std::exp(-std::abs(x)));
    (*gradient)[i] = 1 / (1 + std::exp(-x)) - labels[i];
  }
  return loss;
}

}  // namespace muster
