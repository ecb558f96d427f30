// CRC-32C (Castagnoli; RFC 3720 appendix B.4), the checksum of blocks on disk and of parameters in results.
#pragma once

#include <cstddef>
#include <cstdint>

namespace muster {

/// The checksum of `size` bytes; pass the checksum of what came before as `crc` to go on with it.
uint32_t Crc32c(const void* data, size_t size, uint32_t crc = 0);

}  // namespace muster
