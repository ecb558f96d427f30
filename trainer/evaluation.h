// A model on its test set.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "trainer/models/model.h"
#include "trainer/options.h"

namespace muster {

/// Samples at a time.
inline constexpr int64_t kEvaluationBatch = 1000;

/// "MNIST accuracy: 0.9205\n", as training and evaluation print it at their end.
std::string AccuracyLine(const BatchResult& test);

/// --evaluate: loads a saved model, prints its accuracy on the test set, and writes the result record if that
/// was asked for. Of a test set that is not the training's own, only if --data_dir names it. InvalidArgument:
/// the file cannot be read, is damaged, or is not what the flags say; another test set than the training's.
absl::Status Evaluate(const EvaluationOptions& options);

}  // namespace muster
