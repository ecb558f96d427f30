#include "kernels/finite.h"

#include <cstring>

#include "kernels/vectorize.h"

namespace muster {
namespace {

MUSTER_VECTORIZE bool AllFiniteIn(const unsigned char* bytes, int64_t size) {
  // An exponent of all ones is infinity or NaN; adding one to it carries into the sign.
  uint32_t carries = 0;
  for (int64_t i = 0; i < size; ++i) {
    uint32_t bits;
    std::memcpy(&bits, bytes + i * sizeof bits, sizeof bits);
    carries |= (bits & 0x7f800000u) + 0x00800000u;
  }
  return (carries & 0x80000000u) == 0;
}

}  // namespace

bool AllFiniteBytes(const unsigned char* bytes, int64_t size) { return AllFiniteIn(bytes, size); }

}  // namespace muster
