// `muster-agent receive`: the far end of an upload.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "base/status.h"

namespace muster {

struct ReceiveOptions {
  std::filesystem::path root;
  std::string sha256;
  uint64_t size = 0;  // bytes
  int input_fd = 0;
  /// Called before the input is read: it has to begin with this byte of the archive.
  std::function<absl::Status(uint64_t offset)> begin;
};

/// Reads the rest of a ustar archive of `size` bytes, checks its hash, unpacks it as root/store/<sha256>, and
/// returns "stored <sha256>". If that is there already, or comes to be there while this runs, "present
/// <sha256>"; then the input may not be read at all, or not to its end. Of an input that ends too early, or
/// of which no byte comes for 60 s, what has come is kept for the next receive of the same archive, until
/// this machine is started anew, for a day, unless another receive has it; also while the disk has no room
/// for the rest. Other errors leave nothing behind; what a killed receive left otherwise is removed by the
/// next one, or by EmptyTrash. Holds 1 MiB of the archive in memory at a time.
absl::StatusOr<std::string> Receive(const ReceiveOptions& options);

}  // namespace muster
