// Whether numbers are any.
#pragma once

#include <cstdint>

namespace muster {

/// None of `size` floats, which may lie at any byte, is infinite or NaN. On the calling thread.
bool AllFiniteBytes(const unsigned char* bytes, int64_t size);

}  // namespace muster
