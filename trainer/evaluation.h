// A model on its test set.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "trainer/models/evaluate.h"
#include "trainer/options.h"

namespace muster {

/// Samples at a time.
inline constexpr int64_t kEvaluationBatch = 1000;

/// "MNIST accuracy: 0.9205\n" or "Census accuracy: 0.8460, AUC 0.8950\n", as training and evaluation print it
/// at their end. `data_set`: DataSetTitle.
std::string AccuracyLine(const std::string& data_set, const Evaluation& test);

/// CRC-32C of all that a model has learned: the parameters and then the tables, little-endian.
uint32_t ParametersCrc32c(std::span<const float> parameters, const TableValues& tables);

/// --evaluate: loads a saved model, prints its accuracy on the test set, and writes the result record if that
/// was asked for. Of a test set that is not the training's own, only if --data_dir names it. InvalidArgument:
/// the file cannot be read, is damaged, or is not what the flags say; another test set than the training's.
absl::Status Evaluate(const EvaluationOptions& options);

}  // namespace muster
