// Which samples make up which batch: pure functions of (seed, step, worker), so that a restarted worker, or
// any other number of workers, takes the same samples.
//
// Training reads one endless stream of positions. Each epoch, `dataset_size` positions, is a permutation of
// the data set of its own. Global batch t is positions [t * B, (t + 1) * B), whatever ends of epochs fall
// into it; its workers split it.
#pragma once

#include <cstdint>

namespace muster {

/// Positions [begin, end) of the stream, or indices of a data set.
struct SampleRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const SampleRange&, const SampleRange&) = default;
};

/// The part of global batch `step` that a worker takes: parts differ by at most one sample, the first workers
/// have more, and a part is empty when there are more workers than samples.
SampleRange BatchSlice(int64_t step, int64_t global_batch_size, int worker_index, int worker_count);

/// Immutable; any thread.
class SampleOrder {
 public:
  /// `dataset_size` > 0.
  SampleOrder(uint64_t seed, int64_t dataset_size);

  /// The index in the data set of the sample at `position` >= 0 of the stream. Constant time and memory: a
  /// Feistel network over the next power of four, walked until it falls inside (Black and Rogaway, "Ciphers
  /// with arbitrary finite domains", 2002).
  int64_t SampleAt(int64_t position) const;

 private:
  uint64_t seed_;
  int64_t dataset_size_;
  int half_bits_;
};

}  // namespace muster
