// A planned model in double, one layer after the other with the reference kernels: what Model is held
// against. For tests.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trainer/data/batch.h"
#include "trainer/models/model_spec.h"

namespace muster {

struct ReferenceResult {
  double loss_sum = 0;
  std::vector<double> gradient;  // as the parameters, padding zero
};

/// Drops what a Model made with the same seed drops. Parameters are [layout.size() + batch.rows->size()]:
/// behind the layout lie the values of the batch's rows, and Batch::row_values is not read.
class ReferenceModel {
 public:
  ReferenceModel(ModelPlan plan, uint64_t seed);

  ReferenceResult ForwardBackward(std::span<const double> parameters, const Batch& batch) const;

  /// The loss in training, and in evaluation.
  double TrainingLoss(std::span<const double> parameters, const Batch& batch) const;
  double EvaluationLoss(std::span<const double> parameters, const Batch& batch) const;

  /// How far off a gradient in float may be (as the parameters), if its values before the loss are exact and
  /// its gradients of the logits are off by at most `logits_error`.
  ///
  /// The magnitude of a gradient is the sum of the absolute values of all the products that it is a sum of,
  /// with 1 for each logit's, which is at least as large. A float version is off by at most that magnitude
  /// times logits_error and a rounding for each term on the way (Higham, "Accuracy and stability of numerical
  /// algorithms", 3.1), and by one of the largest magnitude of the tensor where a convolution is on the way.
  std::vector<double> GradientTolerance(std::span<const double> parameters, const Batch& batch,
                                        double logits_error) const;

 private:
  struct Activations;

  Activations Forward(std::span<const double> parameters, const Batch& batch, bool training) const;
  std::vector<double> Backward(std::span<const double> parameters, const Batch& batch,
                               const Activations& activations, std::vector<double> gradient) const;
  std::vector<double> Input(std::span<const double> row_values, const Batch& batch) const;
  void AddWide(std::span<const double> parameters, const Batch& batch, std::vector<double>& logits) const;
  void ColumnGradients(const Batch& batch, const std::vector<double>& logits_gradient,
                       const std::vector<double>& input_gradient, std::span<double> gradient) const;

  ModelPlan plan_;
  std::vector<uint64_t> seeds_;  // of each layer
};

}  // namespace muster
