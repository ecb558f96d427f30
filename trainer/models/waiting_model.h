// A model that waits instead of computing, to measure what exchanges of its gradients take by themselves: on
// hosts of one machine, say, which has not the cores to compute for all of them.
#pragma once

#include <memory>

#include "base/clock.h"
#include "trainer/models/model.h"

namespace muster {

/// A step takes `step`: a third for the forward pass; the rest is shared among the layers' backward passes as
/// their multiplications are, and what of the gradient is ready is said as a model on the CPU says it.
/// Gradients, losses and logits are zero, and nothing is ever right.
std::unique_ptr<Model> MakeWaitingModel(ModelPlan plan, int64_t largest_batch, Duration step);

}  // namespace muster
