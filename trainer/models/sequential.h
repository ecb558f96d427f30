// A classifier that is a list of layers, one after the other, ending in softmax and cross-entropy.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "trainer/models/layer.h"
#include "trainer/models/model.h"

namespace muster {

/// At least one layer; each takes what the one before it gives, and the last gives the logits of the classes.
/// Fails as ParameterLayout::Create does for their tensors.
absl::StatusOr<std::unique_ptr<Model>> MakeSequential(std::vector<std::unique_ptr<Layer>> layers,
                                                      int64_t largest_batch);

}  // namespace muster
