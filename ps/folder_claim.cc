#include "ps/folder_claim.h"

#include <absl/strings/numbers.h>

#include "base/file.h"
#include "base/random.h"

namespace muster {
namespace {

// Numbers of one training's epochs follow each other, from a random one.
constexpr uint64_t kMostEpochs = 1 << 20;
constexpr size_t kMaxBytes = 200;

}  // namespace

FolderClaim::FolderClaim(const std::filesystem::path& folder, const std::string& name)
    : path_(folder / name), token_(RandomName(20)) {}

void FolderClaim::Take(uint64_t epoch) {
  const std::lock_guard lock(mutex_);
  epoch_ = epoch;
  is_written_ = false;
  if (epoch > 0) (void)Write();
}

absl::Status FolderClaim::Check() {
  const std::lock_guard lock(mutex_);
  return epoch_ == 0 ? absl::OkStatus() : Write();
}

// Unless it is there, and is this process's. The mutex is held.
absl::Status FolderClaim::Write() {
  const std::string own = absl::StrFormat("%d %s\n", epoch_, token_);
  const auto found = ReadRegularFile(path_, kMaxBytes);
  if (found.ok() && *found == own) return absl::OkStatus();
  if (!found.ok() && !absl::IsNotFound(found.status())) return found.status();
  uint64_t epoch = 0;
  const bool is_known = found.ok() && absl::SimpleAtoi(found->substr(0, found->find(' ')), &epoch);
  const bool is_later = is_known && epoch > epoch_ && epoch - epoch_ < kMostEpochs;
  if (found.ok() && (is_written_ || is_later)) {
    return FailedPrecondition("another process of this shard has taken over, as %s says", path_.string());
  }
  MUSTER_RETURN_IF_ERROR(MakeDirectories(path_.parent_path()));
  MUSTER_RETURN_IF_ERROR(WriteFileAtomically(path_, own));
  is_written_ = true;
  return absl::OkStatus();
}

}  // namespace muster
