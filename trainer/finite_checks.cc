#include "trainer/finite_checks.h"

#include <cmath>

#include "kernels/elementwise.h"

namespace muster {

absl::Status NotFinite(const std::string& tensor, uint64_t step) {
  return FailedPrecondition("the %s is not finite at step %d: lower the learning rate or check the data",
                            tensor.empty() ? "loss" : "gradient of " + tensor, step);
}

std::string GradientName(const ModelPlan& plan, int32_t number) {
  const auto tensor_count = static_cast<int32_t>(plan.layout.tensors().size());
  return number < tensor_count ? plan.layout.tensors()[number].spec.name
                               : plan.tables[number - tensor_count].name;
}

absl::Status CheckFinite(const ModelPlan& plan, std::span<const float> gradient, const RowIndex& rows,
                         double loss_sum, uint64_t step) {
  if (AllFinite(gradient) && std::isfinite(loss_sum)) return absl::OkStatus();
  for (const LayoutTensor& tensor : plan.layout.tensors()) {
    if (!AllFinite(gradient.subspan(tensor.offset, tensor.size))) return NotFinite(tensor.spec.name, step);
  }
  for (int t = 0; t < rows.table_count(); ++t) {
    const LayoutRange range = rows.range(t);
    if (!AllFinite(gradient.subspan(plan.layout.size() + range.begin, range.size()))) {
      return NotFinite(plan.tables[t].name, step);
    }
  }
  return NotFinite("", step);
}

}  // namespace muster
