#include "base/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>

namespace muster {
namespace {

bool has_raised = false;
rlim_t limit_before;

}  // namespace

void RaiseDescriptorLimit() {
  constexpr rlim_t kEnough = 65536;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kEnough) return;
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = std::min(limit.rlim_max, kEnough);
  if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit_before = before;
  has_raised = true;
}

void RestoreDescriptorLimit() {
  rlimit limit{};
  if (!has_raised || ::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit_before;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace muster
