// Optimizers over a contiguous range of the flat parameter buffer.
//
// Elementwise, without contraction, without libm beyond the correctly rounded sqrt: the result does not
// depend on how the buffer is cut into shards, on alignment, or on the machine.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace muster {

enum class OptimizerKind : uint8_t {
  kSgd = 0,
  kAdam = 1,  // Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015, algorithm 1
};

struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kSgd;
  float learning_rate = 0.5f;
  float beta1 = 0.9f;     // Adam
  float beta2 = 0.999f;   // Adam
  float epsilon = 1e-8f;  // Adam
  friend bool operator==(const OptimizerConfig&, const OptimizerConfig&) = default;
};

/// "sgd", "adam"; InvalidArgument names the valid ones and the nearest.
absl::StatusOr<OptimizerKind> ParseOptimizerKind(const std::string& name);
std::string OptimizerName(OptimizerKind kind);

/// Owns the slots (moments) of one range. One thread at a time.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// One update: updated = parameters - f(gradient), where gradient = gradient_sum * gradient_scale (one over
  /// the number of samples in the sum). All spans have the length given at creation. `updated` may be
  /// `parameters` itself (in place) and must not overlap it otherwise; `gradient_sum` overlaps neither.
  virtual void Apply(std::span<const float> parameters, std::span<const float> gradient_sum,
                     float gradient_scale, std::span<float> updated) = 0;
};

/// An optimizer with zeroed slots for `size` floats.
std::unique_ptr<Optimizer> MakeOptimizer(const OptimizerConfig& config, int64_t size);

}  // namespace muster
