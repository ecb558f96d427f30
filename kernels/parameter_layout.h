// ParameterLayout: where each dense parameter of a model lies in one flat float32 buffer.
//
// Parameters, gradients and optimizer slots all use the same layout; parameter servers own contiguous ranges
// of it and collectives reduce ranges of it, so that both strategies share everything else. Each tensor
// starts on a 64-byte boundary; the padding between tensors is zero in parameters and gradients and stays
// zero.
//
// Immutable after construction; any thread may read it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/initializer.h"

namespace muster {

/// Floats in 64 bytes: the unit in which tensors are aligned and shards are balanced.
inline constexpr int64_t kBlockFloats = 16;

struct TensorSpec {
  std::string name;            // unique in the model, e.g. "hidden_0/weights"
  std::vector<int64_t> shape;  // row-major
  Initializer initializer = Initializer::kZeros;
  float scale = 0;
  int optimizer_group = 0;  // which of the job's optimizers updates it
};

struct LayoutTensor {
  TensorSpec spec;
  int64_t offset = 0;  // floats from the start of the buffer, a multiple of kBlockFloats
  int64_t size = 0;    // floats, without padding
};

/// Floats [begin, end) of the flat buffer.
struct LayoutRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const LayoutRange&, const LayoutRange&) = default;
};

class ParameterLayout {
 public:
  ParameterLayout() = default;

  /// Lays the tensors out in the order given; of none there is nothing in it. InvalidArgument: a name used
  /// twice, a shape with an entry < 1, a group < 0, more than 2^40 floats in all.
  static absl::StatusOr<ParameterLayout> Create(std::vector<TensorSpec> tensors);

  /// Floats in the buffer, padding included; a multiple of kBlockFloats.
  int64_t size() const { return size_; }
  const std::vector<LayoutTensor>& tensors() const { return tensors_; }

  /// Parameters without padding, as people count them.
  int64_t parameter_count() const;

  /// A hash of names, shapes, initializers, scales and optimizer groups, the same on every machine; compared
  /// when a task joins.
  uint64_t Hash() const;

  /// The range that shard `index` of `count` owns: whole blocks, sizes that differ by at most one block. With
  /// more shards than blocks some are empty.
  LayoutRange Shard(int index, int count) const;

  /// Writes the initial values of `range` into `values` ([range.size()]): a pure function of (layout, seed),
  /// the same bits on every machine and for every sharding, without libm.
  void Initialize(uint64_t seed, LayoutRange range, std::span<float> values) const;

 private:
  std::vector<LayoutTensor> tensors_;
  int64_t size_ = 0;
};

}  // namespace muster
