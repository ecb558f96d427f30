// Histogram: how many of the values that came lie between which bounds.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace muster {

/// One thread at a time.
class Histogram {
 public:
  /// `bounds` increase, and live longer: constants.
  explicit Histogram(std::span<const double> bounds) : bounds_(bounds), counts_(bounds.size() + 1) {}

  void Add(double value) {
    ++counts_[std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin()];
    ++count_;
    sum_ += value;
  }

  /// All values of another one with the same bounds.
  void Add(const Histogram& other) {
    for (size_t i = 0; i < counts_.size(); ++i) counts_[i] += other.counts_[i];
    count_ += other.count_;
    sum_ += other.sum_;
  }

  std::span<const double> bounds() const { return bounds_; }
  /// Of values that are at most bounds()[i] and more than the bound before; [bounds().size()]: of the others.
  const std::vector<uint64_t>& counts() const { return counts_; }
  uint64_t count() const { return count_; }
  double sum() const { return sum_; }

 private:
  std::span<const double> bounds_;
  std::vector<uint64_t> counts_;
  uint64_t count_ = 0;
  double sum_ = 0;
};

}  // namespace muster
