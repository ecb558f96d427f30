// SlidingWindow: which numbers of a growing series have been seen. Exact for the newest 64, which is more
// than a sender has in flight.
#pragma once

#include <cstdint>

#include "base/status.h"

namespace muster {

class SlidingWindow {
 public:
  static constexpr uint64_t kSize = 64;

  SlidingWindow() = default;
  /// As a checkpoint has it.
  SlidingWindow(uint64_t end, uint64_t bits) : end_(end), bits_(bits) {}

  bool Contains(uint64_t number) const {
    return number < end_ && end_ - number <= kSize && (bits_ >> (end_ - 1 - number) & 1) != 0;
  }

  /// Nothing is known of it any more.
  bool IsTooOld(uint64_t number) const { return number < end_ && end_ - number > kSize; }

  /// Not for one that is too old.
  void Insert(uint64_t number) {
    MUSTER_CHECK(!IsTooOld(number));
    if (number >= end_) {
      const uint64_t shift = number + 1 - end_;
      bits_ = shift < kSize ? bits_ << shift : 0;
      end_ = number + 1;
    }
    bits_ |= uint64_t{1} << (end_ - 1 - number);
  }

  uint64_t end() const { return end_; }  // one above the highest that was seen, 0 before the first
  uint64_t bits() const { return bits_; }

  friend bool operator==(const SlidingWindow&, const SlidingWindow&) = default;

 private:
  uint64_t end_ = 0;
  uint64_t bits_ = 0;  // bit i: end_ - 1 - i
};

}  // namespace muster
