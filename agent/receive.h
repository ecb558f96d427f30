// `muster-agent receive`: the far end of an upload.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "base/status.h"

namespace muster {

struct ReceiveOptions {
  std::filesystem::path root;
  std::string sha256;
  uint64_t size = 0;  // bytes
  int input_fd = 0;
};

/// Reads a ustar archive of exactly `size` bytes, checks its hash, unpacks it as root/store/<sha256>, and
/// returns "stored <sha256>". If that is there already, or comes to be there while this runs, "present
/// <sha256>"; then the input may not be read to its end. Errors leave nothing behind; what a killed receive
/// left is removed by the next one. Fails when no byte comes for 60 s. Holds 1 MiB of the archive in memory
/// at a time.
absl::StatusOr<std::string> Receive(const ReceiveOptions& options);

}  // namespace muster
