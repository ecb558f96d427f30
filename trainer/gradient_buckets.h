// In which parts a gradient is reduced, the first of them while the rest is still computed, and how large
// these should be. Pure: all ranks come to the same answers from the same numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/parameter_layout.h"

namespace muster {

/// [0, size) from the end, which a backward pass fills first, to the begin: buckets of `bucket_floats`, and
/// last what remains, which is less than two of them.
std::vector<LayoutRange> CutIntoBuckets(int64_t size, int64_t bucket_floats);

/// Small buckets hide more of the communication behind the backward pass, large ones are fewer operations.
/// What that comes to depends on the model, the network and the cores, so it is tried out, in steps of the
/// training itself: each candidate in turn, and then the one with the least median, or of those that are
/// hardly slower the one with the fewest buckets.
class BucketTuner {
 public:
  /// Of `size` floats. `bucket_floats` unset: to be tried out, unless the gradient is too small to be cut.
  BucketTuner(int64_t size, std::optional<int64_t> bucket_floats);

  /// For the next step.
  const std::vector<LayoutRange>& buckets() const { return candidates_[next_].buckets; }

  /// After each step: how long the step before that one took, as the sum over all ranks; anything for the
  /// first. True: this was the last one needed, and from now on the buckets stay as they are.
  bool Add(float seconds);

  /// Of the buckets of the next step, as far as it was tried out. The sum over all ranks.
  float median_seconds() const { return candidates_[next_].median_seconds; }

 private:
  struct Candidate {
    std::vector<LayoutRange> buckets;
    std::vector<float> seconds;
    float median_seconds = 0;
  };

  std::vector<Candidate> candidates_;  // with more and more buckets; one is left in the end
  size_t next_ = 0;
  std::optional<size_t> before_;  // the candidate of the step whose time comes next
};

}  // namespace muster
