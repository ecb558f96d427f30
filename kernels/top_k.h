// The largest of many numbers.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace muster {

/// Where the `count` values of the largest magnitude are, ascending; of equal ones those that come first. NaN
/// counts as larger than all. 0 <= count <= values.size().
void LargestMagnitudes(std::span<const float> values, int64_t count, std::vector<int64_t>* places);

/// 0 of none; NaN and infinity count as infinity.
float LargestMagnitude(std::span<const float> values);

}  // namespace muster
