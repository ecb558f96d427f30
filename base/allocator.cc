#include "base/allocator.h"

#include <malloc.h>

// With a sanitizer the allocator is its own. glibc's is then never set up, and does that in the first call of
// malloc_trim, without a lock: two threads in their first calls would meet in what is half made.
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MUSTER_USES_GLIBC_ALLOCATOR 1
#else
#define MUSTER_USES_GLIBC_ALLOCATOR 0
#endif

namespace muster {

void KeepLargeFreeBlocks() {
#if MUSTER_USES_GLIBC_ALLOCATOR
  ::mallopt(M_MMAP_THRESHOLD, 8 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 256 << 20);
  ::mallopt(M_ARENA_MAX, 1);
#endif
}

void ReturnFreeBlocks() {
#if MUSTER_USES_GLIBC_ALLOCATOR
  ::malloc_trim(0);
#endif
}

}  // namespace muster
