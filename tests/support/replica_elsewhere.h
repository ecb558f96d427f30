// A replica as one on a device is: nobody sees what it has unless it copies it.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "kernels/elementwise.h"
#include "trainer/host_replica.h"

namespace muster {

/// Its gradient() is written as a pass of a model would do it.
class ReplicaElsewhere final : public HostReplica {
 public:
  ReplicaElsewhere(const ParameterLayout& layout, std::span<const OptimizerConfig> optimizers)
      : HostReplica(*LayoutOptimizer::Create(layout, {0, layout.size()}, optimizers)),
        parameters_(layout.size()),
        gradient_(layout.size()) {
    MUSTER_CHECK(HostReplica::Load(parameters_).ok());
  }

  absl::Status Load(std::span<float> parameters) override { return Copy(parameters, parameters_); }
  absl::Status Store(std::span<float> parameters) override { return Copy(parameters_, parameters); }
  std::span<float> gradient() override { return gradient_; }
  absl::Status ReadGradient(LayoutRange part, std::span<float> values) override {
    return Copy(std::span(gradient_).subspan(part.begin, part.size()), values);
  }
  bool is_finite() const override { return AllFinite(gradient_); }

 private:
  static absl::Status Copy(std::span<const float> from, std::span<float> to) {
    MUSTER_CHECK(from.size() == to.size());
    std::copy(from.begin(), from.end(), to.begin());
    return absl::OkStatus();
  }

  std::vector<float> parameters_, gradient_;
};

}  // namespace muster
