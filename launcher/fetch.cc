#include "launcher/fetch.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <absl/strings/str_join.h>

#include <algorithm>

#include "base/file.h"
#include "base/gzip.h"
#include "base/sha256.h"

namespace muster {
namespace {

constexpr int kRounds = 3;

// Of the unpacked bytes; an error if they cannot be unpacked.
absl::StatusOr<std::string> HashOfFile(const std::filesystem::path& path, uint64_t max_bytes) {
  MUSTER_ASSIGN_OR_RETURN(std::string bytes, ReadFile(path, max_bytes));
  if (IsGzip(bytes)) {
    MUSTER_ASSIGN_OR_RETURN(bytes, Gunzip(bytes, path.string(), max_bytes));
  }
  return Sha256Hex(bytes);
}

// "its SHA-256 is X, and that of the set is Y", or why it has none; empty if it is right.
std::string WrongHash(const std::filesystem::path& path, const DataFile& file, uint64_t max_bytes) {
  const auto hash = HashOfFile(path, max_bytes);
  if (!hash.ok()) return std::string(hash.status().message());
  if (*hash == file.sha256) return "";
  return absl::StrFormat("its SHA-256 is %s, and that of the set's %s is %s", *hash, file.name, file.sha256);
}

// A file on its way: open for appending, and locked against other processes for as long as this lives.
class PartFile {
 public:
  static absl::StatusOr<PartFile> Open(const std::filesystem::path& path) {
    UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    if (!fd.valid()) return ErrnoError(errno, path.string());
    const bool locked = ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
    if (!locked && errno != EWOULDBLOCK) return ErrnoError(errno, path.string() + ": flock");
    // Who had the lock may have renamed or removed the file since it was opened here.
    struct stat opened {
    }, named{};
    if (!locked || ::fstat(fd.get(), &opened) != 0 || ::stat(path.c_str(), &named) != 0 ||
        opened.st_ino != named.st_ino) {
      return FailedPrecondition(
          "%s: another process is fetching it; wait until that one has ended, then call this again",
          path.string());
    }
    return PartFile(path, std::move(fd));
  }

  int fd() const { return fd_.get(); }
  const std::filesystem::path& path() const { return path_; }
  uint64_t size() const {
    struct stat info {};
    return ::fstat(fd_.get(), &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
  }
  absl::Status Clear() {
    return ::ftruncate(fd_.get(), 0) == 0 ? absl::OkStatus() : ErrnoError(errno, path_.string());
  }
  absl::Status Remove() {
    return ::unlink(path_.c_str()) == 0 ? absl::OkStatus() : ErrnoError(errno, path_.string());
  }
  absl::Status MoveTo(const std::filesystem::path& to) {
    if (::fsync(fd_.get()) != 0 || ::rename(path_.c_str(), to.c_str()) != 0)
      return ErrnoError(errno, to.string());
    return absl::OkStatus();
  }

 private:
  PartFile(const std::filesystem::path& path, UniqueFd fd) : path_(path), fd_(std::move(fd)) {}
  std::filesystem::path path_;
  UniqueFd fd_;
};

class Fetcher {
 public:
  Fetcher(const DataSet& set, const std::filesystem::path& folder, const FetchOptions& options)
      : folder_(folder / set.name), options_(options) {
    for (std::string url : options.mirrors.empty() ? set.mirrors : options.mirrors) {
      if (!url.ends_with('/')) url += '/';
      mirrors_.push_back({.url = url});
    }
  }

  absl::Status Fetch(const DataFile& file);

 private:
  struct Mirror {
    std::string url;
    absl::Status unreached;  // by an earlier file
  };

  absl::StatusOr<bool> IsThere(const DataFile& file) const;
  absl::Status FetchFromMirrors(const DataFile& file, PartFile& part);
  absl::Status FetchFrom(Mirror& mirror, const DataFile& file, PartFile& part);

  void Say(const std::string& line) const {
    if (options_.say) options_.say(line);
  }

  const std::filesystem::path folder_;
  const FetchOptions& options_;
  std::vector<Mirror> mirrors_;
};

absl::Status Fetcher::Fetch(const DataFile& file) {
  MUSTER_ASSIGN_OR_RETURN(const bool there, IsThere(file));
  if (there) return absl::OkStatus();
  MUSTER_RETURN_IF_ERROR(MakeDirectories(folder_));
  MUSTER_ASSIGN_OR_RETURN(PartFile part, PartFile::Open(folder_ / (file.RemoteName() + ".part")));
  // Who had the lock until now may have finished it.
  const auto finished = IsThere(file);
  absl::Status status = finished.status();
  if (status.ok() && !*finished) {
    status = FetchFromMirrors(file, part);
    if (status.ok()) return part.MoveTo(folder_ / file.RemoteName());
  }
  if (part.size() == 0) (void)part.Remove();
  return status;
}

// FailedPrecondition: something else is there.
absl::StatusOr<bool> Fetcher::IsThere(const DataFile& file) const {
  const auto there = FindPlainOrGzip(folder_, file.name);
  if (!there.ok()) return false;
  const std::string wrong = WrongHash(*there, file, options_.download.max_bytes);
  if (!wrong.empty()) {
    return FailedPrecondition(
        "%s is there already and is something else: %s. Give another folder, or remove it", there->string(),
        wrong);
  }
  Say(there->string() + ": already there");
  return true;
}

// OK: `part` is the file. What failed before that is said then; otherwise the status says it.
absl::Status Fetcher::FetchFromMirrors(const DataFile& file, PartFile& part) {
  std::vector<std::string> failures;
  const auto add = [&](const absl::Status& status) {
    std::string failure(status.message());
    if (std::find(failures.begin(), failures.end(), failure) == failures.end()) {
      failures.push_back(std::move(failure));
    }
  };
  bool wrong_bytes = false;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t size_before = part.size();
    for (Mirror& mirror : mirrors_) {
      absl::Status status = mirror.unreached;
      if (status.ok()) status = FetchFrom(mirror, file, part);
      if (status.ok()) {
        for (const std::string& failure : failures) Say(failure);
        Say(absl::StrFormat("%s: %d bytes from %s", file.RemoteName(), part.size(), mirror.url));
        return status;
      }
      if (absl::IsInternal(status)) return status;  // another mirror would not help
      wrong_bytes = wrong_bytes || absl::IsDataLoss(status);
      add(status);
    }
    if (part.size() <= size_before) break;
  }
  const std::string message =
      file.RemoteName() + " could not be fetched:\n  " + absl::StrJoin(failures, "\n  ");
  return wrong_bytes ? absl::DataLossError(message) : absl::UnavailableError(message);
}

absl::Status Fetcher::FetchFrom(Mirror& mirror, const DataFile& file, PartFile& part) {
  const std::string url = mirror.url + file.RemoteName();
  DownloadOptions download = options_.download;
  if (options_.progress) {
    download.progress = [&](uint64_t bytes, uint64_t total) {
      options_.progress(file.RemoteName(), bytes, total);
    };
  }
  // The second time without what was there from before, which may be of another file.
  for (;;) {
    const uint64_t size_before = part.size();
    const absl::Status status = Annotate(Download(url, part.fd(), download), url);
    if (!status.ok()) {
      if (absl::IsUnavailable(status) && part.size() == size_before) mirror.unreached = status;
      if (absl::IsDataLoss(status)) MUSTER_RETURN_IF_ERROR(part.Clear());  // nothing to go on with
      return status;
    }
    const std::string wrong = WrongHash(part.path(), file, options_.download.max_bytes);
    if (wrong.empty()) return absl::OkStatus();
    MUSTER_RETURN_IF_ERROR(Annotate(part.Clear(), "remove what is wrong"));
    const absl::Status lost = absl::DataLossError(absl::StrFormat("%s: %s; removed", url, wrong));
    if (size_before == 0) return lost;
    Say(std::string(lost.message()) + ", and fetched once more from the start");
  }
}

}  // namespace

absl::Status FetchDataSet(const DataSet& set, const std::filesystem::path& folder,
                          const FetchOptions& options) {
  for (const std::string& url : options.mirrors) {
    MUSTER_RETURN_IF_ERROR(Annotate(CheckUrl(url), "--mirror " + url));
  }
  Fetcher fetcher(set, folder, options);
  for (const DataFile& file : set.files) MUSTER_RETURN_IF_ERROR(fetcher.Fetch(file));
  return absl::OkStatus();
}

}  // namespace muster
