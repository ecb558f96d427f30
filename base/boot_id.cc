#include "base/boot_id.h"

#include "base/file.h"

namespace muster {

std::string BootId() {
  std::string id = ReadFile("/proc/sys/kernel/random/boot_id").value_or("");
  while (!id.empty() && id.back() == '\n') id.pop_back();
  return id;
}

}  // namespace muster
