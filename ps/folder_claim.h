// FolderClaim: which process of a shard may change its checkpoints in a folder. One that was stopped, or cut
// off, may wake up long after another has taken its place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>

#include "base/status.h"

namespace muster {

/// Any thread.
class FolderClaim {
 public:
  /// `name`: of the file in the folder that says whose it is.
  FolderClaim(const std::filesystem::path& folder, const std::string& name);

  /// From this epoch on the folder is this process's, unless one of a later epoch has it. Epochs that are far
  /// apart are of two trainings: of those the one that comes later has it. What fails is tried again by
  /// Check.
  void Take(uint64_t epoch);

  /// FailedPrecondition: another process has the folder. Fails also where it cannot be read or written. Of
  /// who has taken nothing nothing is checked.
  absl::Status Check();

 private:
  absl::Status Write();

  const std::filesystem::path path_;
  const std::string token_;  // this process's
  std::mutex mutex_;         // guards the following
  uint64_t epoch_ = 0;       // number; 0: none
  bool is_written_ = false;
};

}  // namespace muster
