// The store: what hosts have of programs and data, unpacked, under root/store/<SHA-256 of its archive>. A
// content comes to be there under its name at once and whole, or not at all. Tasks may not write into it, but
// root's tasks can: beside it, in <SHA-256>.files, stands what belongs to it, so that a change is noticed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "base/archive.h"
#include "base/file.h"
#include "base/status.h"

namespace muster {

/// root/store
std::filesystem::path StoreFolder(const std::filesystem::path& root);

/// What belongs to the content in this folder: of each file its size and time. It goes with the content, and
/// contents that were placed by earlier agents have none.
std::filesystem::path ContentListPath(std::filesystem::path content);

/// Whether the content is there, and nothing that belongs to it was changed or removed, as far as the file
/// system says so of the first 4096 entries; it counts as used now. What was added makes no difference.
/// InvalidArgument: `sha256` is no name of a content.
absl::StatusOr<bool> IsStored(const std::filesystem::path& root, const std::string& sha256);

/// Of what its files take, as it was placed: nothing is looked at but the list. 0 where it has none.
uint64_t ListedBytes(const std::filesystem::path& content);

/// root/store/tmp, where contents come to be.
std::filesystem::path ScratchParent(const std::filesystem::path& root);

/// Where there, as a file that its writer has locked, the archive of an upload that was cut off is kept. One
/// of another boot is not used: a power failure could have made it other than it was written.
std::filesystem::path KeptArchivePath(const std::filesystem::path& root, const std::string& sha256);

/// Removes from there what is of no use and nobody has locked: folders, and archives of another boot or of
/// more than a day ago.
void RemoveLeftovers(const std::filesystem::path& root);

/// A folder under store/tmp, removed with this object. Locked while it is in use; whoever makes the next one
/// removes what killed ones have left.
class StoreScratch {
 public:
  static absl::StatusOr<StoreScratch> Make(const std::filesystem::path& root);
  StoreScratch(StoreScratch&& other) noexcept;
  ~StoreScratch();

  const std::filesystem::path& path() const { return path_; }
  /// Where a content is unpacked.
  std::filesystem::path tree() const { return path_ / "tree"; }

 private:
  StoreScratch() = default;
  std::filesystem::path path_;
  UniqueFd lock_;
};

/// ResourceExhausted: the disk has less than `bytes` free.
absl::Status CheckSpace(const std::filesystem::path& folder, uint64_t bytes);

/// Gives the scratch's tree, whose hash was checked, its name once it is on the disk and nobody may write
/// into it, in the place of one that was changed, and returns "stored <sha256>"; "present <sha256>" if
/// somebody else was faster.
absl::StatusOr<std::string> PlaceTree(const std::filesystem::path& root, const StoreScratch& scratch,
                                      const std::string& sha256);

/// Hands the bytes of an archive to the sink; an error of the sink's is returned as it is.
using ArchiveProducer = std::function<absl::Status(const ArchiveSink&)>;

/// The archive of a content that is there, without what tasks have added to it.
absl::Status PackContent(const std::filesystem::path& root, const std::string& sha256,
                         const ArchiveSink& take);

/// Unpacks an archive of `size` bytes as it comes, checks its hash and returns what PlaceTree does; "present
/// <sha256>", and asks for nothing, if it is there. DataLoss: it is another one, or no archive. Errors leave
/// nothing behind.
absl::StatusOr<std::string> Store(const std::filesystem::path& root, const std::string& sha256, uint64_t size,
                                  const ArchiveProducer& produce);

}  // namespace muster
