// What a training leaves: whether it can be written, and the model.
#pragma once

#include <span>

#include "base/status.h"
#include "trainer/models/model_spec.h"
#include "trainer/options.h"
#include "trainer/saved_model.h"

namespace muster {

/// To be asked before others count on this worker. InvalidArgument, with the flag: an output has no place, or
/// its format no room for the model.
absl::Status CheckTrainingOutputs(const TrainerOptions& options, const ModelPlan& plan, bool is_chief);

/// The formats that the options ask for. What cannot be written keeps nothing else back.
absl::Status WriteModel(const TrainerOptions& options, const ModelPlan& plan,
                        std::span<const float> parameters, const TableValues& tables,
                        const SavedModelInfo& info);

/// Of several failures the first is kept, for whoever says how it ended; the others are said here.
void KeepFirst(const absl::Status& status, absl::Status* first);

}  // namespace muster
