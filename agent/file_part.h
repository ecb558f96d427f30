// What a task writes to a file of its own, read while the task may go on with it.
#pragma once

#include <cstdint>
#include <filesystem>

#include "agent/task_log.h"
#include "base/status.h"

namespace muster {

/// The bytes from `offset` on, at most so many; where the file is shorter than `offset`, from its last line
/// on. `more_may_come`: whole lines only, unless one is longer than that, because who writes the file may cut
/// off a part of a line, and write another one there, before the next look. InvalidArgument: it is no regular
/// file.
absl::StatusOr<LogPiece> ReadFilePart(const std::filesystem::path& path, uint64_t offset, size_t max_bytes,
                                      bool more_may_come);

}  // namespace muster
