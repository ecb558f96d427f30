#include "trainer/gradient_buckets.h"

#include <algorithm>
#include <iterator>

#include "base/status.h"

namespace muster {
namespace {

constexpr int64_t kCandidateBytes[] = {16 << 20, 4 << 20, 1 << 20};
// Of each candidate: the median of so many is not moved by an evaluation, or by another process.
constexpr size_t kSteps = 7;
// How much faster more buckets have to be: less is within what two medians of the same differ by.
constexpr float kGain = 0.97f;

float MedianOf(std::vector<float> values) {
  const auto middle = values.begin() + static_cast<int64_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::vector<LayoutRange> CutIntoBuckets(int64_t size, int64_t bucket_floats) {
  MUSTER_CHECK(bucket_floats > 0);
  std::vector<LayoutRange> buckets;
  int64_t end = size;
  for (; end >= 2 * bucket_floats; end -= bucket_floats) buckets.push_back({end - bucket_floats, end});
  buckets.push_back({0, end});
  return buckets;
}

BucketTuner::BucketTuner(int64_t size, std::optional<int64_t> bucket_floats) {
  candidates_.push_back({.buckets = CutIntoBuckets(size, bucket_floats.value_or(size))});
  if (bucket_floats) return;
  for (const int64_t bytes : kCandidateBytes) {
    std::vector<LayoutRange> buckets = CutIntoBuckets(size, bytes / static_cast<int64_t>(sizeof(float)));
    if (buckets.size() > candidates_.back().buckets.size()) candidates_.push_back({std::move(buckets)});
  }
}

bool BucketTuner::Add(float seconds) {
  if (candidates_.size() == 1) return false;
  if (before_) candidates_[*before_].seconds.push_back(seconds);
  before_ = next_;
  next_ = (next_ + 1) % candidates_.size();
  if (candidates_.back().seconds.size() < kSteps) return false;
  size_t best = 0;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    candidates_[i].median_seconds = MedianOf(candidates_[i].seconds);
    if (candidates_[i].median_seconds < kGain * candidates_[best].median_seconds) best = i;
  }
  candidates_ = {candidates_[best]};
  next_ = 0;
  return true;
}

}  // namespace muster
