#include "base/status.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace muster {

int ExitCodeFor(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 0;
    case absl::StatusCode::kInvalidArgument:
      return 2;
    case absl::StatusCode::kUnavailable:
      return 69;
    case absl::StatusCode::kDeadlineExceeded:
      return 124;
    case absl::StatusCode::kCancelled:
      return 130;
    default:
      return 1;
  }
}

absl::Status Annotate(const absl::Status& status, const std::string& context) {
  if (status.ok()) return status;
  return absl::Status(status.code(), context + ": " + std::string(status.message()));
}

absl::Status ErrnoError(int error_number, const std::string& what) {
  return absl::ErrnoToStatus(error_number, what);
}

void CheckFailed(const char* file, int line, const char* condition, const std::string& message) {
  std::fprintf(stderr, "%s:%d: check failed: %s %s\n", file, line, condition, message.c_str());
  std::abort();
}

}  // namespace muster
