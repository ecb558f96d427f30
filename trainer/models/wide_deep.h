// The models of the census: wide_deep.
#pragma once

#include "base/status.h"
#include "trainer/models/model.h"

namespace muster {

/// Wide & deep (Cheng et al., "Wide & deep learning for recommender systems", DLRS 2016) on the columns of
/// trainer/data/census_columns.h: crosses of columns with a weight each, trained by FTRL, and beside them
/// embeddings under ReLU layers, trained by Adagrad; their logits add up. Variants `tutorial` (hidden 100,
/// 50), `dist_test` (5), `minibatch` (100, 75, 50, 25), and `wide_only`: the wide part of `tutorial` alone.
/// All but `minibatch` take as many samples a
/// step, over all workers, as UCI's training set has, as their sources do. Numbers are standardized,
/// where the sources take them raw, which full batches rarely survive.
absl::StatusOr<ModelRecipe> WideDeep(const ModelConfig& config);

}  // namespace muster
