// A model's result on a whole data set.
#pragma once

#include <optional>
#include <span>

#include "base/status.h"
#include "trainer/data/batch.h"
#include "trainer/models/model.h"
#include "trainer/models/row_source.h"

namespace muster {

struct Evaluation {
  BatchResult result;         // sums over all samples
  std::optional<double> auc;  // of models with one logit, where there are samples of both classes
};

/// Over all samples of `dataset`, in its order, in batches of the buffer's size (which the model must have
/// been made for). `rows`: of the model's tables; null for a model without any. Fails as it and the model do.
/// There may be numbers in it that are not finite.
absl::StatusOr<Evaluation> EvaluateDataset(Model& model, std::span<const float> parameters,
                                           const Dataset& dataset, BatchBuffer& buffer,
                                           RowSource* rows = nullptr);

/// FailedPrecondition: the loss is not finite; then there is no accuracy either.
absl::Status CheckFinite(const Evaluation& evaluation);

/// The area under the receiver operating characteristic: the probability that a sample of class 1 has a
/// higher score than one of class 0, equal scores counting half (Hanley and McNeil, "The meaning and use of
/// the area under a receiver operating characteristic (ROC) curve", Radiology 1982). Labels are 0 or 1;
/// no score is NaN; nullopt if all are the same.
std::optional<double> AreaUnderCurve(std::span<const float> scores, std::span<const uint8_t> labels);

}  // namespace muster
