#include "base/allocator.h"

#include <malloc.h>

namespace muster {

void KeepLargeFreeBlocks() {
#ifdef __GLIBC__
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the most that glibc takes
  ::mallopt(M_TRIM_THRESHOLD, 256 << 20);
#endif
}

}  // namespace muster
