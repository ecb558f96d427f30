#include "base/archive.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

namespace muster {
namespace {

constexpr size_t kBlockBytes = 512;
constexpr size_t kPieceBytes = size_t{256} << 10;
constexpr uint64_t kMostFileBytes = uint64_t{1} << 33;  // what eleven octal digits can say

// Layout of POSIX.1-1988 section 10.1.1; numbers are octal text. A long name has its beginning in the prefix,
// without the slash between them.
struct Header {
  char name[100];
  char mode[8];
  char uid[8];
  char gid[8];
  char size[12];
  char mtime[12];
  char checksum[8];
  char type;
  char link[100];
  char magic[6];
  char version[2];
  char owner[32];
  char group[32];
  char device_major[8];
  char device_minor[8];
  char prefix[155];
  char padding[12];
};
static_assert(sizeof(Header) == kBlockBytes);

unsigned Checksum(Header header) {
  std::memset(header.checksum, ' ', sizeof header.checksum);
  unsigned sum = 0;
  const auto* bytes = reinterpret_cast<const unsigned char*>(&header);
  for (size_t i = 0; i < sizeof header; ++i) sum += bytes[i];
  return sum;
}

// How much of a name is in the prefix; nothing: it is too long.
std::optional<size_t> PrefixSize(std::string_view name) {
  if (name.size() <= sizeof(Header::name)) return 0;
  const size_t slash = name.find('/', name.size() - sizeof(Header::name) - 1);
  if (slash > sizeof(Header::prefix) || slash + 1 == name.size()) return std::nullopt;
  return slash;
}

Header MakeHeader(const std::string& name, char type, unsigned mode, uint64_t size, const std::string& link) {
  Header header{};
  const size_t prefix = *PrefixSize(name), rest = prefix == 0 ? 0 : prefix + 1;
  std::memcpy(header.prefix, name.data(), prefix);
  std::memcpy(header.name, name.data() + rest, name.size() - rest);
  std::snprintf(header.mode, sizeof header.mode, "%07o", mode);
  std::snprintf(header.uid, sizeof header.uid, "%07o", 0);
  std::snprintf(header.gid, sizeof header.gid, "%07o", 0);
  std::snprintf(header.size, sizeof header.size, "%011llo", static_cast<unsigned long long>(size));
  std::snprintf(header.mtime, sizeof header.mtime, "%011o", 0);
  header.type = type;
  std::memcpy(header.link, link.data(), link.size());
  std::memcpy(header.magic, "ustar", 6);
  std::memcpy(header.version, "00", 2);
  std::snprintf(header.checksum, sizeof header.checksum, "%06o", Checksum(header));
  header.checksum[7] = ' ';
  return header;
}

// Names that cannot be made beside each other, or at all, are the archive's fault.
absl::Status AsDamage(const absl::Status& status) {
  const bool is_damage =
      absl::IsAlreadyExists(status) || absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status);
  return is_damage ? DataLoss("archive holds a name that does not fit: %s", std::string(status.message()))
                   : status;
}

absl::Status Put(const ArchiveSink& take, const Header& header) {
  return take({reinterpret_cast<const char*>(&header), sizeof header});
}

absl::Status PackFile(const ArchiveSink& take, const std::filesystem::path& path, const std::string& name) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  struct stat info {};
  if (!file.valid() || ::fstat(file.get(), &info) != 0) return ErrnoError(errno, path.string());
  const auto size = static_cast<uint64_t>(info.st_size);
  if (size >= kMostFileBytes)
    return InvalidArgument("%s: larger than 8 GiB: it cannot travel", path.string());
  MUSTER_RETURN_IF_ERROR(Put(take, MakeHeader(name, '0', (info.st_mode & 0100) ? 0755 : 0644, size, "")));
  std::string piece(std::min<uint64_t>(size, kPieceBytes), '\0');
  for (uint64_t left = size; left > 0;) {
    const ssize_t n = ::read(file.get(), piece.data(), std::min<uint64_t>(left, piece.size()));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoError(errno, path.string());
    if (n == 0) return DataLoss("%s became shorter while it was read: pack it again", path.string());
    MUSTER_RETURN_IF_ERROR(take(std::string_view(piece).substr(0, n)));
    left -= n;
  }
  return take(std::string((kBlockBytes - size % kBlockBytes) % kBlockBytes, '\0'));
}

template <size_t n>
std::string_view Text(const char (&field)[n]) {
  return {field, ::strnlen(field, n)};
}

template <size_t n>
bool ParseOctal(const char (&field)[n], uint64_t* value) {
  std::string_view text = Text(field);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value, 8);
  return error == std::errc() && end == text.data() + text.size();
}

bool StaysInside(const std::filesystem::path& relative) {
  if (relative.empty() || relative.is_absolute()) return false;
  int depth = 0;
  for (const auto& part : relative) {
    if (part == "..") {
      if (--depth < 0) return false;
    } else if (part != ".") {
      ++depth;
    }
  }
  return true;
}

// As the kernel would follow it, also where nothing is there yet. By its text alone each of `d/a -> ..`,
// `d/b -> ../d/a/..` and so on stays inside.
bool LeadsInside(const std::filesystem::path& folder, const std::filesystem::path& relative) {
  constexpr int kMostLinks = 40;  // beyond that it leads nowhere
  std::deque<std::filesystem::path> ahead(relative.begin(), relative.end());
  std::filesystem::path here;  // has no links
  for (int links = 0; !ahead.empty();) {
    const std::filesystem::path part = std::move(ahead.front());
    ahead.pop_front();
    if (part.empty() || part == ".") continue;
    if (part == "..") {
      if (here.empty()) return false;
      here = here.parent_path();
      continue;
    }
    std::error_code error;
    const std::filesystem::path target = std::filesystem::read_symlink(folder / here / part, error);
    if (error) {
      here /= part;
      continue;
    }
    if (target.is_absolute()) return false;
    if (++links > kMostLinks) return true;
    ahead.insert(ahead.begin(), target.begin(), target.end());
  }
  return true;
}

// Adds what is in folder/below and what is below that, as paths from `folder`. `before`: what stands before
// each in the archive.
absl::Status ListBelow(const std::filesystem::path& folder, const std::string& below,
                       const std::string& before, const std::function<bool(std::string_view)>& include,
                       std::vector<std::string>* names) {
  MUSTER_ASSIGN_OR_RETURN(const std::vector<std::string> entries, ListDirectory(folder / below));
  for (const std::string& entry : entries) {
    const std::string name = below.empty() ? entry : below + "/" + entry;
    if (include && !include(name)) continue;
    if (!PrefixSize(before + name)) {
      return InvalidArgument(
          "%s: its path from %s is too long to travel (100 bytes for the last part, 155 for what is before "
          "that): shorten it",
          (folder / name).string(), folder.string());
    }
    names->push_back(name);
    std::error_code error;
    if (!std::filesystem::is_directory(std::filesystem::symlink_status(folder / name, error))) continue;
    MUSTER_RETURN_IF_ERROR(ListBelow(folder, name, before, include, names));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PackDirectoryTo(const ArchiveSink& take, const std::filesystem::path& folder,
                             const PackOptions& options) {
  if (!options.into.empty()) MUSTER_RETURN_IF_ERROR(Put(take, MakeHeader(options.into, '5', 0755, 0, "")));
  const std::string before = options.into.empty() ? "" : options.into + "/";
  std::vector<std::string> relative;
  MUSTER_RETURN_IF_ERROR(ListBelow(folder, "", before, options.include, &relative));
  std::sort(relative.begin(), relative.end());

  for (const std::string& within : relative) {
    const std::filesystem::path path = folder / within;
    const std::string name = before + within;
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0) return ErrnoError(errno, path.string());
    if (S_ISDIR(info.st_mode)) {
      MUSTER_RETURN_IF_ERROR(Put(take, MakeHeader(name, '5', 0755, 0, "")));
    } else if (S_ISLNK(info.st_mode)) {
      std::error_code error;
      const std::string target = std::filesystem::read_symlink(path, error).string();
      if (target.size() > sizeof(Header::link) ||
          !StaysInside(std::filesystem::path(within).parent_path() / target) ||
          !LeadsInside(folder, within)) {
        return InvalidArgument("%s: a link to %s, outside the folder, cannot travel", path.string(), target);
      }
      MUSTER_RETURN_IF_ERROR(Put(take, MakeHeader(name, '2', 0777, 0, target)));
    } else if (S_ISREG(info.st_mode)) {
      MUSTER_RETURN_IF_ERROR(PackFile(take, path, name));
    } else {
      return InvalidArgument("%s: neither a file nor a folder nor a link", path.string());
    }
  }
  return take(std::string(2 * kBlockBytes, '\0'));
}

absl::StatusOr<std::string> PackDirectory(const std::filesystem::path& folder, const PackOptions& options) {
  std::string archive;
  MUSTER_RETURN_IF_ERROR(PackDirectoryTo(
      [&](std::string_view piece) {
        archive += piece;
        return absl::OkStatus();
      },
      folder, options));
  return archive;
}

absl::Status Unpacker::Take(std::string_view bytes) {
  while (!bytes.empty() && !is_complete_) {
    // What of `bytes` belongs to the file, else to its padding, else to the next header.
    std::string_view part = bytes.substr(0, data_left_ > 0      ? data_left_
                                            : padding_left_ > 0 ? padding_left_
                                                                : kBlockBytes - header_.size());
    bytes.remove_prefix(part.size());
    position_ += part.size();
    if (data_left_ > 0) {
      MUSTER_RETURN_IF_ERROR(Annotate(WriteAll(file_.get(), part), path_.string()));
      data_left_ -= part.size();
      if (data_left_ == 0) file_.reset();
    } else if (padding_left_ > 0) {
      padding_left_ -= part.size();
    } else {
      header_ += part;
      if (header_.size() == kBlockBytes) MUSTER_RETURN_IF_ERROR(TakeHeader(std::exchange(header_, "")));
    }
  }
  return absl::OkStatus();
}

absl::Status Unpacker::Finish() const {
  if (is_complete_) {
    // Only now: a link may come before those that it leads through.
    for (const std::filesystem::path& link : links_) {
      if (!LeadsInside(folder_, link)) {
        return DataLoss("archive holds a link outside its folder: %s", link.string());
      }
    }
    return absl::OkStatus();
  }
  if (data_left_ > 0) return DataLoss("archive ends inside %s", path_.lexically_relative(folder_).string());
  return DataLoss("archive ends early, at byte %d", position_);
}

absl::Status Unpacker::TakeHeader(std::string_view block) {
  Header header;
  std::memcpy(&header, block.data(), sizeof header);
  if (header.name[0] == '\0') {
    is_complete_ = true;
    return absl::OkStatus();
  }
  const uint64_t begin = position_ - kBlockBytes;
  uint64_t checksum = 0, size = 0, mode = 0;
  if (Text(header.magic) != "ustar" || !ParseOctal(header.checksum, &checksum) ||
      checksum != Checksum(header) || !ParseOctal(header.size, &size) || !ParseOctal(header.mode, &mode)) {
    return DataLoss("archive has a damaged header at byte %d", begin);
  }
  std::string name(Text(header.name));
  if (header.prefix[0] != '\0') name = std::string(Text(header.prefix)) + "/" + name;
  if (header.type == '5' && name.ends_with('/')) name.pop_back();  // as other programs write folders
  if (!ValidateRelativePath(name).ok()) return DataLoss("archive holds a name outside its folder: %s", name);
  // Below a link, which stays inside by its text only: of `d/up -> ..` and `x -> d/up/..` the second leads
  // out.
  std::filesystem::path prefix;
  for (const auto& part : std::filesystem::path(name)) {
    prefix /= part;
    if (links_.contains(prefix)) return DataLoss("archive holds a name below a link: %s", name);
  }
  path_ = folder_ / name;
  if (header.type == '5') return AsDamage(MakeDirectories(path_));
  MUSTER_RETURN_IF_ERROR(AsDamage(MakeDirectories(path_.parent_path())));
  if (header.type == '2') {
    if (allowed_links_ == Links::kNone) return DataLoss("archive holds a link: %s", name);
    const std::string target(Text(header.link));
    if (!StaysInside(std::filesystem::path(name).parent_path() / target)) {
      return DataLoss("archive holds a link outside its folder: %s", name);
    }
    if (::symlink(target.c_str(), path_.c_str()) != 0) return AsDamage(ErrnoError(errno, path_.string()));
    links_.insert(prefix);
    return absl::OkStatus();
  }
  if (header.type != '0') return DataLoss("archive holds an entry of unknown type at byte %d", begin);
  // O_EXCL and O_NOFOLLOW: an archive cannot write through a link that it has planted.
  file_ = UniqueFd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode & 0755));
  if (!file_.valid()) return AsDamage(ErrnoError(errno, path_.string()));
  data_left_ = size;
  padding_left_ = (kBlockBytes - size % kBlockBytes) % kBlockBytes;
  return absl::OkStatus();
}

absl::Status UnpackArchive(std::string_view archive, const std::filesystem::path& folder) {
  Unpacker unpacker(folder);
  MUSTER_RETURN_IF_ERROR(unpacker.Take(archive));
  return unpacker.Finish();
}

}  // namespace muster
