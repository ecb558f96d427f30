// How a range of floats is shared out among ranks.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/parameter_layout.h"

namespace muster {

/// The part of `size` floats that belongs to place `index` of `count`: whole blocks, sizes that differ by at
/// most one block.
inline LayoutRange PartOf(size_t size, int index, int count) {
  const auto floats = static_cast<int64_t>(size);
  const int64_t blocks = (floats + kBlockFloats - 1) / kBlockFloats;
  return {std::min(floats, blocks * index / count * kBlockFloats),
          std::min(floats, blocks * (index + 1) / count * kBlockFloats)};
}

}  // namespace muster
