#include "ps/checkpoint_store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>
#include <set>

#include "base/crc32c.h"
#include "base/file.h"
#include "base/random.h"

namespace muster {
namespace {

constexpr char kMagic[8] = {'M', 'U', 'S', 'T', 'E', 'R', 'M', '1'};
constexpr char kManifestName[] = "manifest";
constexpr char kFolderPrefix[] = "step-";
constexpr uint64_t kMaxManifestBytes = 64 << 20;
constexpr uint64_t kSyncEvery = 64 << 20;  // bytes of a copy

struct Prefix {
  char magic[8];
  uint32_t bytes;
  uint32_t crc32c;
};

std::string FolderName(uint64_t step) { return absl::StrFormat("%s%012d", kFolderPrefix, step); }

std::optional<uint64_t> StepOf(const std::string& name) {
  if (!name.starts_with(kFolderPrefix)) return std::nullopt;
  const std::string digits = name.substr(std::strlen(kFolderPrefix));
  uint64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || end != digits.data() + digits.size() || name != FolderName(step))
    return std::nullopt;
  return step;
}

// So that a name that was made or renamed in it outlives the machine.
absl::Status SyncFolder(const std::filesystem::path& folder) {
  const UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid() || ::fsync(fd.get()) != 0) return ErrnoError(errno, folder.string());
  return absl::OkStatus();
}

}  // namespace

std::filesystem::path CheckpointStore::PathOf(uint64_t step, const std::string& name) const {
  return folder_ / FolderName(step) / name;
}

std::string CheckpointStore::ShardFileName(int shard_index, int shard_count) {
  return absl::StrFormat("shard-%05d-of-%05d", shard_index, shard_count);
}

absl::StatusOr<checkpoint::Manifest::File> CheckpointStore::WriteShard(
    uint64_t step, const checkpoint::ShardHeader& header, std::span<const CheckpointSection> sections) const {
  const std::string name =
      ShardFileName(static_cast<int>(header.shard_index()), static_cast<int>(header.shard_count()));
  const std::filesystem::path path = PathOf(step, name);
  if (hook_) hook_("mkdir");
  MUSTER_RETURN_IF_ERROR(MakeDirectories(path.parent_path()));
  // One that is there is made again, by a training that went back: from here on it is none.
  MUSTER_RETURN_IF_ERROR(Revoke(step));
  MUSTER_ASSIGN_OR_RETURN(const ShardFileSummary summary,
                          WriteShardFile(path, header, sections, hook_, may_change_));
  if (hook_) hook_("sync folders");
  MUSTER_RETURN_IF_ERROR(SyncFolder(path.parent_path()));
  MUSTER_RETURN_IF_ERROR(SyncFolder(folder_));
  checkpoint::Manifest::File file;
  file.set_name(name);
  file.set_bytes(summary.bytes);
  file.set_digest(summary.digest);
  file.set_step(header.step());
  return file;
}

absl::StatusOr<std::string> CheckpointStore::ReadPiece(uint64_t step, const std::string& name,
                                                       uint64_t offset, size_t max_bytes) const {
  const std::filesystem::path path = PathOf(step, name);
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoError(errno, path.string());
  std::string piece(max_bytes, '\0');
  size_t size = 0;
  while (size < max_bytes) {
    const ssize_t n =
        ::pread(fd.get(), piece.data() + size, max_bytes - size, static_cast<off_t>(offset + size));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoError(errno, path.string());
    if (n == 0) break;
    size += n;
  }
  piece.resize(size);
  return piece;
}

bool CheckpointStore::HasShard(uint64_t step, const checkpoint::Manifest::File& file, bool read) const {
  const std::filesystem::path path = PathOf(step, file.name());
  std::error_code error;
  if (std::filesystem::file_size(path, error) != file.bytes() || error) return false;
  auto reader = ShardFileReader::Open(path);
  if (!reader.ok() || !read) return reader.ok();
  const auto summary = reader->Finish();
  return summary.ok() && summary->digest == file.digest();
}

uint32_t DigestOf(const checkpoint::Manifest& manifest) {
  checkpoint::Manifest files;
  *files.mutable_files() = manifest.files();
  const std::string bytes = files.SerializeAsString();
  return Crc32c(bytes.data(), bytes.size());
}

absl::Status CheckpointStore::Commit(const checkpoint::Manifest& manifest) const {
  checkpoint::Manifest out = manifest;
  out.set_version(kCheckpointVersion);
  const std::string bytes = out.SerializeAsString();
  Prefix prefix{.bytes = static_cast<uint32_t>(bytes.size()), .crc32c = Crc32c(bytes.data(), bytes.size())};
  std::memcpy(prefix.magic, kMagic, sizeof kMagic);
  const std::filesystem::path path = PathOf(manifest.step(), kManifestName);
  if (hook_) hook_("commit");
  MUSTER_RETURN_IF_ERROR(MakeDirectories(path.parent_path()));
  MUSTER_RETURN_IF_ERROR(MayChange());
  MUSTER_RETURN_IF_ERROR(
      WriteFileAtomically(path, std::string(reinterpret_cast<const char*>(&prefix), sizeof prefix) + bytes));
  if (hook_) hook_("sync folders");
  MUSTER_RETURN_IF_ERROR(SyncFolder(path.parent_path()));
  return SyncFolder(folder_);
}

absl::StatusOr<bool> CheckpointStore::HasUncommitted(const std::string& file) const {
  MUSTER_ASSIGN_OR_RETURN(const std::vector<uint64_t> steps, List());
  const auto names = ListDirectory(folder_);
  if (absl::IsNotFound(names.status())) return false;
  MUSTER_RETURN_IF_ERROR(names.status());
  return std::ranges::any_of(*names, [&](const std::string& name) {
    const std::optional<uint64_t> step = StepOf(name);
    return step && (steps.empty() || *step > steps.front()) &&
           ::access(PathOf(*step, file).c_str(), F_OK) == 0;
  });
}

absl::StatusOr<std::vector<uint64_t>> CheckpointStore::List() const {
  const auto names = ListDirectory(folder_);
  if (absl::IsNotFound(names.status())) return std::vector<uint64_t>();
  MUSTER_RETURN_IF_ERROR(names.status());
  std::vector<uint64_t> steps;
  for (const std::string& name : *names) {
    const std::optional<uint64_t> step = StepOf(name);
    if (step && ::access(PathOf(*step, kManifestName).c_str(), F_OK) == 0) steps.push_back(*step);
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

std::optional<Duration> CheckpointStore::AgeOf(uint64_t step) const {
  std::error_code error;
  const auto committed = std::filesystem::last_write_time(PathOf(step, kManifestName), error);
  if (error) return std::nullopt;
  return std::max<Duration>(std::filesystem::file_time_type::clock::now() - committed, Duration::zero());
}

absl::StatusOr<checkpoint::Manifest> CheckpointStore::ReadManifest(uint64_t step) const {
  const std::filesystem::path path = PathOf(step, kManifestName);
  MUSTER_ASSIGN_OR_RETURN(const std::string bytes, ReadRegularFile(path, kMaxManifestBytes));
  const auto damaged = [&] { return DataLoss("%s is damaged", path.string()); };
  Prefix prefix;
  if (bytes.size() < sizeof prefix) return damaged();
  std::memcpy(&prefix, bytes.data(), sizeof prefix);
  const std::string_view body = std::string_view(bytes).substr(sizeof prefix);
  checkpoint::Manifest manifest;
  if (std::memcmp(prefix.magic, kMagic, sizeof kMagic) != 0 || prefix.bytes != body.size() ||
      Crc32c(body.data(), body.size()) != prefix.crc32c ||
      !manifest.ParseFromArray(body.data(), static_cast<int>(body.size()))) {
    return damaged();
  }
  if (manifest.version() != kCheckpointVersion) {
    return FailedPrecondition("%s has version %d of the checkpoint format, this program reads version %d",
                              path.string(), manifest.version(), kCheckpointVersion);
  }
  if (manifest.step() != step || manifest.files().empty()) return damaged();
  for (int i = 0; i < manifest.files_size(); ++i) {
    if (manifest.files(i).name() != ShardFileName(i, manifest.files_size())) return damaged();
  }
  return manifest;
}

absl::StatusOr<ShardFileReader> CheckpointStore::OpenShard(const checkpoint::Manifest& manifest,
                                                           int index) const {
  const checkpoint::Manifest::File& file = manifest.files(index);
  const std::filesystem::path path = PathOf(manifest.step(), file.name());
  auto reader = ShardFileReader::Open(path);
  if (absl::IsNotFound(reader.status())) {
    return NotFound(
        "%s is missing: with another number of parameter servers, or on another host, this folder must hold "
        "the files of all of them",
        path.string());
  }
  MUSTER_RETURN_IF_ERROR(reader.status());
  std::error_code error;
  const checkpoint::ShardHeader& header = reader->header();
  if (std::filesystem::file_size(path, error) != file.bytes() || error || header.step() != file.step() ||
      static_cast<int>(header.shard_index()) != index ||
      static_cast<int>(header.shard_count()) != manifest.files_size()) {
    return DataLoss("%s is not the file that its checkpoint was made with", path.string());
  }
  return reader;
}

absl::Status CheckpointStore::CheckDigest(const checkpoint::Manifest& manifest, int index,
                                          ShardFileReader& reader) const {
  const checkpoint::Manifest::File& file = manifest.files(index);
  MUSTER_ASSIGN_OR_RETURN(const ShardFileSummary summary, reader.Finish());
  if (summary == ShardFileSummary{.bytes = file.bytes(), .digest = file.digest()}) return absl::OkStatus();
  return DataLoss("%s is not the file that its checkpoint was made with",
                  PathOf(manifest.step(), file.name()).string());
}

absl::Status CheckpointStore::VerifyShard(const checkpoint::Manifest& manifest, int index) const {
  MUSTER_ASSIGN_OR_RETURN(ShardFileReader reader, OpenShard(manifest, index));
  return CheckDigest(manifest, index, reader);
}

absl::Status CheckpointStore::Revoke(uint64_t step) const {
  MUSTER_RETURN_IF_ERROR(MayChange());
  const std::filesystem::path path = PathOf(step, kManifestName);
  std::error_code error;
  std::filesystem::remove(path, error);
  return error ? Unavailable("%s: %s", path.string(), error.message()) : absl::OkStatus();
}

absl::Status CheckpointStore::Prune(int keep, uint64_t needed) const {
  MUSTER_CHECK(keep > 0);
  MUSTER_ASSIGN_OR_RETURN(const std::vector<uint64_t> steps, List());
  if (static_cast<int>(steps.size()) <= keep) return absl::OkStatus();
  const uint64_t oldest = std::min(steps[keep - 1], needed);
  MUSTER_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListDirectory(folder_));
  for (const std::string& name : names) {
    const std::optional<uint64_t> step = StepOf(name);
    if (!step || *step >= oldest) continue;
    MUSTER_RETURN_IF_ERROR(Revoke(*step));  // first: what is half removed is no checkpoint
    MUSTER_RETURN_IF_ERROR(RemoveTree(folder_ / name));
  }
  return absl::OkStatus();
}

absl::Status CheckpointStore::RemoveAbandoned(uint64_t step, const std::vector<std::string>& files) const {
  const auto names = ListDirectory(folder_);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  MUSTER_RETURN_IF_ERROR(names.status());
  std::set<uint64_t, std::greater<>> steps;  // the newest first
  for (const std::string& name : *names) {
    const std::optional<uint64_t> of = StepOf(name);
    if (of && *of <= step && ::access(PathOf(*of, kManifestName).c_str(), F_OK) != 0) steps.insert(*of);
  }
  std::set<std::string> has_newer;
  if (!steps.empty()) MUSTER_RETURN_IF_ERROR(MayChange());
  for (const uint64_t of : steps) {
    std::error_code error;
    for (const std::string& file : files) {
      const std::filesystem::path path = PathOf(of, file);
      if (::access(path.c_str(), F_OK) != 0 || has_newer.insert(file).second) continue;
      std::filesystem::remove(path, error);
      if (error) return Unavailable("%s: %s", path.string(), error.message());
    }
    std::filesystem::remove(folder_ / FolderName(of), error);  // unless a file is there
  }
  return absl::OkStatus();
}

absl::Status CheckpointStore::RemoveAfter(uint64_t step, const std::string& file) const {
  const auto names = ListDirectory(folder_);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  MUSTER_RETURN_IF_ERROR(names.status());
  for (const std::string& name : *names) {
    const std::optional<uint64_t> other = StepOf(name);
    if (!other || *other <= step) continue;
    MUSTER_RETURN_IF_ERROR(Revoke(*other));
    std::error_code error;
    std::filesystem::remove(PathOf(*other, file), error);
    if (error) return Unavailable("%s: %s", PathOf(*other, file).string(), error.message());
    for (const std::string& left : ListDirectory(folder_ / name).value_or(std::vector<std::string>())) {
      if (left.starts_with(file + kUnfinishedShardFile))
        std::filesystem::remove(folder_ / name / left, error);
    }
    std::filesystem::remove(folder_ / name, error);  // unless another shard's file is there
  }
  return absl::OkStatus();
}

ShardFileCopy::Unfinished::~Unfinished() {
  if (!finished) ::unlink(path.c_str());
}

absl::StatusOr<ShardFileCopy> ShardFileCopy::Begin(const CheckpointStore& store, uint64_t step,
                                                   const checkpoint::Manifest::File& file) {
  ShardFileCopy copy;
  copy.path_ = store.PathOf(step, file.name());
  copy.file_ = file;
  MUSTER_RETURN_IF_ERROR(MakeDirectories(copy.path_.parent_path()));
  copy.temporary_ = std::make_unique<Unfinished>();
  copy.temporary_->path = copy.path_.string() + ".copying-" + RandomName(8);  // there may be another one
  const std::filesystem::path& temporary = copy.temporary_->path;
  copy.fd_ = UniqueFd(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!copy.fd_.valid()) return ErrnoError(errno, temporary.string());
  return copy;
}

absl::Status ShardFileCopy::Append(std::string_view bytes) {
  if (bytes.size() > file_.bytes() - received_) {
    return InvalidArgument("%s: more than the %d bytes that it was to have", path_.string(), file_.bytes());
  }
  MUSTER_RETURN_IF_ERROR(Annotate(WriteAll(fd_.get(), bytes), temporary_->path.string()));
  received_ += bytes.size();
  // So that the end does not take all of the disk's time at once.
  if (received_ - synced_ < kSyncEvery) return absl::OkStatus();
  synced_ = received_;
  return ::fdatasync(fd_.get()) == 0 ? absl::OkStatus() : ErrnoError(errno, temporary_->path.string());
}

absl::Status ShardFileCopy::Finish() {
  MUSTER_CHECK(is_complete());
  const std::filesystem::path& temporary = temporary_->path;
  MUSTER_ASSIGN_OR_RETURN(ShardFileReader reader, ShardFileReader::Open(temporary));
  MUSTER_ASSIGN_OR_RETURN(const ShardFileSummary summary, reader.Finish());
  if (summary != ShardFileSummary{.bytes = file_.bytes(), .digest = file_.digest()}) {
    return DataLoss("%s is not the file that was announced", temporary.string());
  }
  if (::fsync(fd_.get()) != 0) return ErrnoError(errno, temporary.string());
  if (::rename(temporary.c_str(), path_.c_str()) != 0) return ErrnoError(errno, path_.string());
  temporary_->finished = true;
  return SyncFolder(path_.parent_path());
}

}  // namespace muster
