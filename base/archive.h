// Bundles: a folder packed into one ustar archive (POSIX.1-1988), so that it has one hash and travels as one
// stream.
//
// The same files give the same bytes: names sorted, owner 0, time 0, mode 0755 or 0644. Only regular files,
// folders and symbolic links that stay inside. `tar tf` reads it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "base/file.h"
#include "base/status.h"

namespace muster {

/// Is handed an archive in pieces, in order; an error ends it.
using ArchiveSink = std::function<absl::Status(std::string_view)>;

struct PackOptions {
  /// Whether a relative path travels; what is below a folder for which this does not hold is not looked at.
  std::function<bool(std::string_view)> include = {};
  /// A folder in the archive that everything is put into.
  std::string into = {};
};

/// Packs what is under `folder`. Errors name the file: InvalidArgument, if it cannot travel: a path in the
/// archive of more than 100 bytes that has no slash with at most 155 bytes before and 100 behind it; 8 GiB or
/// more; neither file nor folder nor link. DataLoss: it became shorter meanwhile. Holds 256 KiB of a file in
/// memory at a time. An error of `take` is returned as it is.
absl::Status PackDirectoryTo(const ArchiveSink& take, const std::filesystem::path& folder,
                             const PackOptions& options = {});

/// The same in memory.
absl::StatusOr<std::string> PackDirectory(const std::filesystem::path& folder,
                                          const PackOptions& options = {});

/// Unpacks an archive as it comes into `folder`, which must exist and be empty. The archive is not trusted:
/// it writes nowhere else. DataLoss: a bad checksum, an early end, an absolute name, ".." in one, a name
/// below one of its links, the same name twice, a link that leads out. Other errors are the disk's. After an
/// error it is of no more use, and what it has left in the folder is not to be trusted.
class Unpacker {
 public:
  /// kNone: DataLoss, wherever they lead.
  enum class Links { kInside, kNone };
  explicit Unpacker(std::filesystem::path folder, Links links = Links::kInside)
      : folder_(std::move(folder)), allowed_links_(links) {}

  /// The next bytes. What follows the end of the archive is left alone.
  absl::Status Take(std::string_view bytes);
  /// After the last of them: DataLoss if it was not all, or is not as it may be.
  absl::Status Finish() const;

 private:
  absl::Status TakeHeader(std::string_view block);

  const std::filesystem::path folder_;
  const Links allowed_links_;
  std::set<std::filesystem::path> links_;  // that it has made, relative to the folder
  std::string header_;                     // of the next entry, as far as it has come
  std::filesystem::path path_;             // of the file that is being written
  UniqueFd file_;
  uint64_t data_left_ = 0;     // of that file, bytes
  uint64_t padding_left_ = 0;  // behind it
  uint64_t position_ = 0;      // in the archive
  bool is_complete_ = false;
};

/// The same of a whole archive.
absl::Status UnpackArchive(std::string_view archive, const std::filesystem::path& folder);

}  // namespace muster
