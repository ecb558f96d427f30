// A replica whose parameters lie where the host has them, as the model that computes on the CPU does.
#pragma once

#include <span>
#include <utility>

#include "kernels/layout_optimizer.h"
#include "trainer/models/replica.h"

namespace muster {

/// Gradients are in memory that the model is given.
class HostReplica : public Replica {
 public:
  explicit HostReplica(LayoutOptimizer optimizer) : optimizer_(std::move(optimizer)) {}

  absl::Status Load(std::span<float> parameters) override {
    parameters_ = parameters;
    return absl::OkStatus();
  }
  absl::Status Store(std::span<float> parameters) override {
    MUSTER_CHECK(parameters.data() == parameters_.data());
    return absl::OkStatus();
  }
  int slot_count() const override { return optimizer_.slot_count(); }
  absl::Status CopySlot(int slot, std::span<float> values) override {
    optimizer_.CopySlot(slot, values);
    return absl::OkStatus();
  }
  absl::Status SetSlot(int slot, std::span<const float> values) override {
    optimizer_.SetSlot(slot, values);
    return absl::OkStatus();
  }
  void SkipTo(uint64_t updates) override { optimizer_.SkipTo(updates); }
  absl::Status Update(std::span<const float> gradient_sum, float scale) override {
    optimizer_.Apply(parameters_, gradient_sum, scale, parameters_);
    return absl::OkStatus();
  }
  absl::Status ReadGradient(LayoutRange, std::span<float>) override { return absl::OkStatus(); }

 private:
  LayoutOptimizer optimizer_;
  std::span<float> parameters_;
};

}  // namespace muster
