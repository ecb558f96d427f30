// Replica: a worker's copy of the dense parameters with what updates them, in the memory of whatever
// computes.
#pragma once

#include <cstdint>
#include <span>

#include "base/status.h"
#include "kernels/parameter_layout.h"

namespace muster {

/// Spans are the host's memory, [layout.size()] but where something else is said. One thread at a time, the
/// one of the model that computes with it. Internal: the device has failed.
class Replica {
 public:
  virtual ~Replica() = default;

  /// It has these parameters from now on. One in the host's memory has them in this place, where they stay.
  virtual absl::Status Load(std::span<float> parameters) = 0;

  /// Writes those that it has, to the same place as Load read.
  virtual absl::Status Store(std::span<float> parameters) = 0;

  /// As those of LayoutOptimizer.
  virtual int slot_count() const = 0;
  virtual absl::Status CopySlot(int slot, std::span<float> values) = 0;
  virtual absl::Status SetSlot(int slot, std::span<const float> values) = 0;
  virtual void SkipTo(uint64_t updates) = 0;

  /// One update, as that of LayoutOptimizer. gradient_sum: gradient(), or the host's memory.
  virtual absl::Status Update(std::span<const float> gradient_sum, float scale) = 0;

  /// Where, on a device, a pass of the model leaves its gradient, padding zero. Empty: it goes to memory of
  /// the host that the model is given.
  virtual std::span<float> gradient() { return {}; }

  /// Copies a part of gradient() that is final, while the rest may still be computed, to `values`
  /// ([part.size()]).
  virtual absl::Status ReadGradient(LayoutRange part, std::span<float> values) = 0;

  /// Whether gradient() is, as far as the model has told of it.
  virtual bool is_finite() const { return true; }
};

}  // namespace muster
