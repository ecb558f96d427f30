#include "ps/journal.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "base/crc32c.h"

namespace muster {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

constexpr uint32_t kJournalVersion = 2;
constexpr char kMagic[8] = {'M', 'U', 'S', 'T', 'E', 'R', 'J', '1'};

// Before each message. Its own place is in it, so that none that is elsewhere passes for it.
struct FramePrefix {
  uint64_t offset = 0;
  uint64_t payload_bytes = 0;
  uint32_t message_bytes = 0;
  uint32_t body_crc32c = 0;    // of message and payload
  uint32_t prefix_crc32c = 0;  // of the fields above
  uint32_t unused = 0;

  uint32_t Checksum() const { return Crc32c(this, offsetof(FramePrefix, prefix_crc32c)); }
};
static_assert(sizeof(FramePrefix) == 32);

// Through interruptions and short writes.
absl::Status WriteAll(int fd, std::vector<iovec> parts) {
  std::erase_if(parts, [](const iovec& part) { return part.iov_len == 0; });
  for (size_t next = 0; next < parts.size();) {
    const ssize_t count =
        ::writev(fd, &parts[next], static_cast<int>(std::min<size_t>(parts.size() - next, IOV_MAX)));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoError(errno, "write");
    size_t left = static_cast<size_t>(count);
    for (; next < parts.size() && left >= parts[next].iov_len; ++next) left -= parts[next].iov_len;
    if (left > 0) {
      parts[next].iov_base = static_cast<char*>(parts[next].iov_base) + left;
      parts[next].iov_len -= left;
    }
  }
  return absl::OkStatus();
}

iovec PartOf(const void* data, size_t size) { return {const_cast<void*>(data), size}; }

}  // namespace

absl::StatusOr<JournalWriter> JournalWriter::Create(const std::filesystem::path& path,
                                                    const journal::SegmentHeader& header) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644));
  if (!fd.valid()) return ErrnoError(errno, path.string());
  JournalWriter writer(path, std::move(fd));
  journal::SegmentHeader out = header;
  out.set_version(kJournalVersion);
  MUSTER_RETURN_IF_ERROR(
      Annotate(WriteAll(writer.fd_.get(), {PartOf(kMagic, sizeof kMagic)}), path.string()));
  writer.bytes_ = sizeof kMagic;
  MUSTER_RETURN_IF_ERROR(writer.AppendFrame(out, {}));
  return writer;
}

absl::Status JournalWriter::Append(const journal::Record& record,
                                   std::span<const std::span<const char>> payload) {
  MUSTER_RETURN_IF_ERROR(AppendFrame(record, payload));
  ++records_;
  return absl::OkStatus();
}

absl::Status JournalWriter::AppendFrame(const google::protobuf::MessageLite& message,
                                        std::span<const std::span<const char>> payload) {
  MUSTER_RETURN_IF_ERROR(failure_);
  const std::string bytes = message.SerializeAsString();
  FramePrefix prefix{.offset = bytes_,
                     .message_bytes = static_cast<uint32_t>(bytes.size()),
                     .body_crc32c = Crc32c(bytes.data(), bytes.size())};
  std::vector<iovec> parts = {PartOf(&prefix, sizeof prefix), PartOf(bytes.data(), bytes.size())};
  for (const std::span<const char> part : payload) {
    prefix.payload_bytes += part.size();
    prefix.body_crc32c = Crc32c(part.data(), part.size(), prefix.body_crc32c);
    parts.push_back(PartOf(part.data(), part.size()));
  }
  prefix.prefix_crc32c = prefix.Checksum();
  failure_ = Annotate(WriteAll(fd_.get(), std::move(parts)), path_.string());
  MUSTER_RETURN_IF_ERROR(failure_);
  bytes_ += sizeof prefix + bytes.size() + prefix.payload_bytes;
  return absl::OkStatus();
}

absl::StatusOr<JournalReader> JournalReader::Open(const std::filesystem::path& path) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return ErrnoError(errno, path.string());
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return ErrnoError(errno, path.string());
  if (!S_ISREG(info.st_mode)) return InvalidArgument("%s is no file", path.string());
  JournalReader reader(path, std::move(fd), static_cast<uint64_t>(info.st_size));
  char magic[sizeof kMagic] = {};
  const size_t there = std::min<size_t>(sizeof magic, reader.size_);
  MUSTER_RETURN_IF_ERROR(reader.Read({magic, there}));
  if (std::memcmp(magic, kMagic, there) != 0) return reader.Damaged("it does not begin as a journal");
  if (there < sizeof magic) {
    reader.is_torn_ = true;
    return reader;
  }
  MUSTER_ASSIGN_OR_RETURN(const auto header, reader.NextFrame(&reader.header_));
  if (header && reader.header_.version() != kJournalVersion) {
    return FailedPrecondition("%s has version %d of the journal's format, this program reads version %d",
                              path.string(), reader.header_.version(), kJournalVersion);
  }
  return reader;
}

absl::StatusOr<std::optional<JournalReader::Entry>> JournalReader::Next() {
  Entry entry;
  MUSTER_ASSIGN_OR_RETURN(auto payload, NextFrame(&entry.record));
  if (!payload) return std::nullopt;
  ++records_;
  entry.payload = *std::move(payload);
  return entry;
}

absl::StatusOr<std::optional<std::string>> JournalReader::NextFrame(google::protobuf::MessageLite* message) {
  if (is_torn_ || offset_ == size_) return std::nullopt;
  is_torn_ = size_ - offset_ < sizeof(FramePrefix);
  if (is_torn_) return std::nullopt;
  FramePrefix prefix;
  const uint64_t offset = offset_;
  MUSTER_RETURN_IF_ERROR(Read({reinterpret_cast<char*>(&prefix), sizeof prefix}));
  if (prefix.prefix_crc32c != prefix.Checksum() || prefix.offset != offset || prefix.unused != 0) {
    return Damaged("the beginning of a record");
  }
  // What is right in itself was written as it is, so that only what follows can be missing.
  const uint64_t left = size_ - offset_;
  is_torn_ = prefix.message_bytes > left || prefix.payload_bytes > left - prefix.message_bytes;
  if (is_torn_) return std::nullopt;
  std::string bytes(prefix.message_bytes, '\0'), payload(prefix.payload_bytes, '\0');
  MUSTER_RETURN_IF_ERROR(Read({bytes.data(), bytes.size()}));
  MUSTER_RETURN_IF_ERROR(Read({payload.data(), payload.size()}));
  if (Crc32c(payload.data(), payload.size(), Crc32c(bytes.data(), bytes.size())) != prefix.body_crc32c ||
      !message->ParseFromString(bytes)) {
    return Damaged("a record");
  }
  return payload;
}

absl::Status JournalReader::Read(std::span<char> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::read(fd_.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoError(errno, path_.string());
    if (count == 0) return Damaged("it became shorter");
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset_ += static_cast<uint64_t>(count);
  }
  return absl::OkStatus();
}

absl::Status JournalReader::Damaged(const char* what) const {
  return DataLoss("%s is damaged at byte %d: %s", path_.string(), offset_, what);
}

}  // namespace muster
