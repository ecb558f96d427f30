#include "base/mount_point.h"

#include <fcntl.h>
#include <sys/stat.h>

namespace muster {

bool IsMountPoint(const std::filesystem::path& path) {
  struct statx info {};
  return ::statx(AT_FDCWD, path.c_str(), 0, 0, &info) == 0 &&
         (info.stx_attributes_mask & info.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
}

}  // namespace muster
