#include "base/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>

namespace muster {

void RaiseDescriptorLimit() {
  constexpr rlim_t kEnough = 65536;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kEnough) return;
  limit.rlim_cur = std::min(limit.rlim_max, kEnough);
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace muster
