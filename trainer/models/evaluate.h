// A model's result on a whole data set.
#pragma once

#include <span>

#include "trainer/data/batch.h"
#include "trainer/data/mnist.h"
#include "trainer/models/model.h"

namespace muster {

/// The sums over all samples of `dataset`, in its order, in batches of the buffer's size (which the model
/// must have been made for).
BatchResult EvaluateDataset(Model& model, std::span<const float> parameters, const Dataset& dataset,
                            BatchBuffer& buffer);

}  // namespace muster
