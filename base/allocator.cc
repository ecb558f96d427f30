#include "base/allocator.h"

#include <malloc.h>

namespace muster {

void KeepLargeFreeBlocks() {
#ifdef __GLIBC__
  ::mallopt(M_MMAP_THRESHOLD, 8 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 256 << 20);
  ::mallopt(M_ARENA_MAX, 1);
#endif
}

void ReturnFreeBlocks() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

}  // namespace muster
