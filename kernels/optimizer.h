// Optimizers over a contiguous range of the flat parameter buffer, or over rows of a table.
//
// Elementwise, without contraction, without libm beyond the correctly rounded sqrt: the result does not
// depend on how the buffer is cut into shards, on alignment, or on the machine.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kernels/learning_rate.h"
#include "kernels/optimizer_kind.h"

namespace muster {

/// Everything any of them reads. What a kind does not read keeps its default.
struct OptimizerConfig {
  OptimizerKind kind = OptimizerKind::kSgd;
  float learning_rate = 0.5f;
  float weight_decay = 0;
  float momentum = 0.9f;
  bool nesterov = false;
  float beta1 = 0.9f;
  float beta2 = 0.999f;
  float epsilon = 1e-8f;
  float initial_accumulator = 0.1f;
  float l1 = 0;
  float l2 = 0;
  LearningRateSchedule schedule;
  friend bool operator==(const OptimizerConfig&, const OptimizerConfig&) = default;
};

/// "sgd", "momentum", ...; InvalidArgument names the valid ones and the nearest.
absl::StatusOr<OptimizerKind> ParseOptimizerKind(const std::string& name);
std::string OptimizerName(OptimizerKind kind);

/// Names of the fields that the kind reads beside learning_rate and schedule.
std::span<const std::string_view> OptimizerFields(OptimizerKind kind);

/// The kind with the learning rate that people begin with: sgd and momentum 0.01, adam 0.001 (its paper's),
/// adagrad 0.05 and ftrl 0.2 (those of TensorFlow's estimators).
OptimizerConfig UsualOptimizer(OptimizerKind kind);

/// InvalidArgument names a field out of range, or one that has been set and that the kind does not read.
absl::Status Validate(const OptimizerConfig& config);

/// How one update reads its gradient and its learning rate.
struct UpdateScale {
  float gradient = 1;  // one over the number of samples in the sum
  float rate =
      1;  // times the scheduled learning rate; only sgd, momentum, adagrad and adam take another than 1

  UpdateScale(float gradient, float rate = 1)
      : gradient(gradient), rate(rate) {}  // NOLINT: most give one number
};

/// Owns the slots (moments) of one range and counts its updates, of either sort: the schedule's step is the
/// number of those before. One thread at a time.
///
/// A parameter that is 0 and never gets a gradient stays 0.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// One update: updated = parameters - f(gradient), where gradient = gradient_sum * scale.gradient. All
  /// spans have the length given at creation. `updated` may be `parameters` itself (in place) and must not
  /// overlap it otherwise; `gradient_sum` overlaps neither.
  virtual void Apply(std::span<const float> parameters, std::span<const float> gradient_sum,
                     UpdateScale scale, std::span<float> updated) = 0;

  /// The same in parts, which follow each other from 0 on: Begin, then ApplyPart for each, `begin` being
  /// where it begins. The same bits, on the calling thread.
  virtual void Begin(UpdateScale scale) = 0;
  virtual void ApplyPart(int64_t begin, std::span<const float> parameters,
                         std::span<const float> gradient_sum, std::span<float> updated) = 0;

  /// One update that touches only the rows named of a table, parameters: [size / width, width], in place.
  /// rows: distinct, in any order; one outside the table is a bug. gradient_sums: [rows.size(), width],
  /// packed, overlaps nothing. Parameters and slots of other rows stay as they are: neither moments nor
  /// weights decay there. What belongs to the optimizer and not to a row advances once for each update: the
  /// schedule and Adam's bias correction. Without weight decay, sgd, adagrad and ftrl give the same bits as
  /// Apply with zeros for the other rows.
  virtual void ApplyRows(int64_t width, std::span<const int64_t> rows, std::span<const float> gradient_sums,
                         UpdateScale scale, std::span<float> parameters) = 0;

  /// From now on over `size` floats; those that are new have fresh slots, those beyond lose theirs.
  virtual void Resize(int64_t size) = 0;

  /// The slots, each as long as the range, in an order that is the kind's. With them and SkipTo an optimizer
  /// is made that goes on with the same bits. Valid until it is resized.
  virtual std::vector<std::span<float>> slots() = 0;

  /// As if it had made `updates` updates; slots stay as they are.
  virtual void SkipTo(uint64_t updates) = 0;
};

/// How many there are of each kind: 0 to 2.
int SlotCount(OptimizerKind kind);

/// An optimizer with fresh slots for `size` floats. A config that is not valid is a bug.
std::unique_ptr<Optimizer> MakeOptimizer(const OptimizerConfig& config, int64_t size);

}  // namespace muster
