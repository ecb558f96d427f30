#include "tests/support/checkout.h"

namespace muster {
namespace {

std::string PathIn(std::string folder, std::string_view relative) {
  if (!relative.empty()) folder.append("/").append(relative);
  return folder;
}

}  // namespace

std::string SourcePath(std::string_view relative) { return PathIn(MUSTER_SOURCE_DIR, relative); }

std::string BuildPath(std::string_view relative) { return PathIn(MUSTER_BUILD_DIR, relative); }

}  // namespace muster
