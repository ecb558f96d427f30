// Whether a step has diverged, and where in the model.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "kernels/row_index.h"
#include "trainer/models/model_spec.h"

namespace muster {

/// FailedPrecondition, with what may help. `tensor`: the first whose gradient is not finite; empty: only the
/// loss is not.
absl::Status NotFinite(const std::string& tensor, uint64_t step);

/// `number`: as DeviceStep counts.
std::string GradientName(const ModelPlan& plan, int32_t number);

/// NotFinite unless all of a step's gradient ([layout.size() + rows.size()]) and its loss are finite.
absl::Status CheckFinite(const ModelPlan& plan, std::span<const float> gradient, const RowIndex& rows,
                         double loss_sum, uint64_t step);

}  // namespace muster
