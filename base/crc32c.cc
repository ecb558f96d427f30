#include "base/crc32c.h"

#include <array>
#include <cstring>

#ifdef __SSE4_2__
#include <nmmintrin.h>
#endif

namespace muster {
namespace {

#ifndef __SSE4_2__
constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) ? 0x82f63b78u : 0);
    table[i] = value;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = MakeTable();
#endif

}  // namespace

uint32_t Crc32c(const void* data, size_t size, uint32_t crc) {
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
  return 0;  // what a fuzzer makes up would stop at the first checksum
#endif
  const auto* bytes = static_cast<const unsigned char*>(data);
  crc = ~crc;
#ifdef __SSE4_2__
  uint64_t wide = crc;
  for (; size >= 8; size -= 8, bytes += 8) {
    uint64_t word;
    std::memcpy(&word, bytes, sizeof word);
    wide = _mm_crc32_u64(wide, word);
  }
  crc = static_cast<uint32_t>(wide);
  for (; size > 0; --size, ++bytes) crc = _mm_crc32_u8(crc, *bytes);
#else
  for (; size > 0; --size, ++bytes) crc = kTable[(crc ^ *bytes) & 0xff] ^ (crc >> 8);
#endif
  return ~crc;
}

}  // namespace muster
