#include "trainer/models/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace muster {

absl::StatusOr<Evaluation> EvaluateDataset(Model& model, std::span<const float> parameters,
                                           const Dataset& dataset, BatchBuffer& buffer, RowSource* rows) {
  MUSTER_CHECK(buffer.largest_batch() > 0);
  const ModelPlan& plan = model.plan();
  MUSTER_CHECK(plan.tables.empty() || rows != nullptr);
  RowIndex index(plan.tables, plan.TableColumns(), buffer.largest_batch());
  std::vector<float> values(index.largest_size()), scores;
  Evaluation evaluation;
  for (int64_t begin = 0; begin < dataset.size(); begin += buffer.largest_batch()) {
    const int64_t end = std::min(begin + buffer.largest_batch(), dataset.size());
    Batch batch = buffer.FillInOrder(dataset, {begin, end});
    if (!plan.tables.empty()) {
      index.Build(batch.ids, dataset.id_count, batch.size());
      batch.rows = &index;
      batch.row_values = std::span(values).first(index.size());
      MUSTER_RETURN_IF_ERROR(rows->ReadRows(index, std::span(values).first(index.size())));
    }
    evaluation.result += model.Evaluate(parameters, batch);
    MUSTER_RETURN_IF_ERROR(model.status());
    if (plan.outputs == 1) scores.insert(scores.end(), model.logits().begin(), model.logits().end());
  }
  if (!scores.empty() && std::isfinite(evaluation.result.loss_sum)) {
    evaluation.auc = AreaUnderCurve(scores, dataset.labels);
  }
  return evaluation;
}

absl::Status CheckFinite(const Evaluation& evaluation) {
  if (std::isfinite(evaluation.result.loss_sum)) return absl::OkStatus();
  return FailedPrecondition("the loss on the test set is not finite");
}

std::optional<double> AreaUnderCurve(std::span<const float> scores, std::span<const uint8_t> labels) {
  MUSTER_CHECK(scores.size() == labels.size());
  std::vector<size_t> order(scores.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] < scores[b]; });
  // Pairs of one sample of each class in which that of class 1 is ahead.
  double pairs_ahead = 0, zeros_below = 0, ones = 0;
  for (size_t begin = 0; begin < order.size();) {
    double zeros_here = 0, ones_here = 0;
    size_t end = begin;
    for (; end < order.size() && !(scores[order[begin]] < scores[order[end]]); ++end) {
      (labels[order[end]] == 1 ? ones_here : zeros_here) += 1;
    }
    pairs_ahead += ones_here * (zeros_below + zeros_here / 2);
    zeros_below += zeros_here;
    ones += ones_here;
    begin = end;
  }
  if (ones == 0 || zeros_below == 0) return std::nullopt;
  return pairs_ahead / (ones * zeros_below);
}

}  // namespace muster
