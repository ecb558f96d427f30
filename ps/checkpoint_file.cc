#include "ps/checkpoint_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/crc32c.h"
#include "base/random.h"

namespace muster {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

constexpr char kMagic[8] = {'M', 'U', 'S', 'T', 'E', 'R', 'C', '1'};
constexpr size_t kBlockBytes = 1 << 20;
constexpr uint32_t kMaxHeaderBytes = 256 << 20;

struct Prefix {
  char magic[8];
  uint32_t header_bytes;
  uint32_t header_crc32c;
};

class Writer {
 public:
  // The name is no other process's: one that was stopped may write on beside it.
  Writer(const std::filesystem::path& path, const FileOperationHook& hook,
         const std::function<absl::Status()>& may_change)
      : path_(path),
        temporary_(path.string() + kUnfinishedShardFile + RandomName(8)),
        hook_(hook),
        may_change_(may_change) {}
  ~Writer() {
    if (!renamed_) ::unlink(temporary_.c_str());
  }

  absl::Status Write(const checkpoint::ShardHeader& header, std::span<const CheckpointSection> sections) {
    Before("open");
    fd_ = UniqueFd(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!fd_.valid()) return ErrnoError(errno, temporary_.string());
    const std::string bytes = header.SerializeAsString();
    if (bytes.size() > kMaxHeaderBytes)
      return InvalidArgument("%s: a header of %d bytes", path_.string(), bytes.size());
    Prefix prefix{.header_bytes = static_cast<uint32_t>(bytes.size()),
                  .header_crc32c = Crc32c(bytes.data(), bytes.size())};
    std::memcpy(prefix.magic, kMagic, sizeof kMagic);
    MUSTER_RETURN_IF_ERROR(Append({reinterpret_cast<const char*>(&prefix), sizeof prefix}));
    MUSTER_RETURN_IF_ERROR(Append(bytes));
    Digest(prefix.header_crc32c);
    for (const CheckpointSection& section : sections) {
      for (size_t begin = 0; begin < section.bytes.size(); begin += kBlockBytes) {
        const auto block = section.bytes.subspan(begin, std::min(kBlockBytes, section.bytes.size() - begin));
        const uint32_t crc32c = Crc32c(block.data(), block.size());
        MUSTER_RETURN_IF_ERROR(Append({block.data(), block.size()}));
        MUSTER_RETURN_IF_ERROR(Append({reinterpret_cast<const char*>(&crc32c), sizeof crc32c}));
        Digest(crc32c);
      }
    }
    Before("sync");
    if (::fsync(fd_.get()) != 0) return ErrnoError(errno, temporary_.string());
    fd_.reset();
    Before("rename");
    if (may_change_) MUSTER_RETURN_IF_ERROR(may_change_());
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) return ErrnoError(errno, path_.string());
    renamed_ = true;
    return absl::OkStatus();
  }

  ShardFileSummary summary() const { return summary_; }

 private:
  void Before(const char* operation) {
    if (hook_) hook_(operation);
  }
  void Digest(uint32_t crc32c) { summary_.digest = Crc32c(&crc32c, sizeof crc32c, summary_.digest); }
  absl::Status Append(std::string_view bytes) {
    Before("write");
    summary_.bytes += bytes.size();
    return Annotate(WriteAll(fd_.get(), bytes), temporary_.string());
  }

  const std::filesystem::path path_;
  const std::filesystem::path temporary_;
  const FileOperationHook& hook_;
  const std::function<absl::Status()>& may_change_;
  UniqueFd fd_;
  ShardFileSummary summary_;
  bool renamed_ = false;
};

}  // namespace

absl::StatusOr<ShardFileSummary> WriteShardFile(const std::filesystem::path& path,
                                                checkpoint::ShardHeader header,
                                                std::span<const CheckpointSection> sections,
                                                const FileOperationHook& hook,
                                                const std::function<absl::Status()>& may_change) {
  header.set_version(kCheckpointVersion);
  header.clear_sections();
  for (const CheckpointSection& section : sections) {
    *header.add_sections() = section.section;
    header.mutable_sections()->rbegin()->set_bytes(section.bytes.size());
  }
  Writer writer(path, hook, may_change);
  MUSTER_RETURN_IF_ERROR(writer.Write(header, sections));
  return writer.summary();
}

absl::Status ShardFileReader::Damaged(const char* what) const {
  return DataLoss("%s is damaged: %s", path_.string(), what);
}

absl::Status ShardFileReader::ReadExactly(std::span<char> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::read(fd_->get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoError(errno, path_.string());
    if (n == 0) return Damaged("it ends too early");
    bytes = bytes.subspan(n);
    summary_.bytes += n;
  }
  return absl::OkStatus();
}

absl::StatusOr<ShardFileReader> ShardFileReader::Open(const std::filesystem::path& path) {
  ShardFileReader reader;
  reader.path_ = path;
  reader.fd_ = std::make_unique<UniqueFd>(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!reader.fd_->valid()) return ErrnoError(errno, path.string());
  struct stat info {};
  if (::fstat(reader.fd_->get(), &info) != 0) return ErrnoError(errno, path.string());
  if (!S_ISREG(info.st_mode)) return InvalidArgument("%s is no file", path.string());
  Prefix prefix;
  MUSTER_RETURN_IF_ERROR(reader.ReadExactly({reinterpret_cast<char*>(&prefix), sizeof prefix}));
  if (std::memcmp(prefix.magic, kMagic, sizeof kMagic) != 0)
    return reader.Damaged("it does not begin as a shard's file");
  const auto size = static_cast<uint64_t>(info.st_size);
  if (prefix.header_bytes > kMaxHeaderBytes || prefix.header_bytes > size)
    return reader.Damaged("its header's size");
  std::string bytes(prefix.header_bytes, '\0');
  MUSTER_RETURN_IF_ERROR(reader.ReadExactly({bytes.data(), bytes.size()}));
  if (Crc32c(bytes.data(), bytes.size()) != prefix.header_crc32c || !reader.header_.ParseFromString(bytes)) {
    return reader.Damaged("its header");
  }
  if (reader.header_.version() != kCheckpointVersion) {
    return FailedPrecondition("%s has version %d of the checkpoint format, this program reads version %d",
                              path.string(), reader.header_.version(), kCheckpointVersion);
  }
  // What a section claims must be there before memory is made for it.
  uint64_t left = size - reader.summary_.bytes;
  for (const checkpoint::Section& section : reader.header_.sections()) {
    if (section.bytes() > left) return reader.Damaged("it is shorter than its sections");
    left -= section.bytes();
  }
  reader.summary_.digest = Crc32c(&prefix.header_crc32c, sizeof prefix.header_crc32c);
  return reader;
}

absl::Status ShardFileReader::Read(std::span<char> bytes) {
  MUSTER_CHECK(next_section_ < header_.sections_size() &&
               bytes.size() == header_.sections(next_section_).bytes());
  ++next_section_;
  for (size_t begin = 0; begin < bytes.size(); begin += kBlockBytes) {
    MUSTER_RETURN_IF_ERROR(ReadBlock(bytes.subspan(begin, std::min(kBlockBytes, bytes.size() - begin))));
  }
  return absl::OkStatus();
}

absl::Status ShardFileReader::ReadBlock(std::span<char> block) {
  uint32_t crc32c;
  MUSTER_RETURN_IF_ERROR(ReadExactly(block));
  MUSTER_RETURN_IF_ERROR(ReadExactly({reinterpret_cast<char*>(&crc32c), sizeof crc32c}));
  if (Crc32c(block.data(), block.size()) != crc32c) return Damaged("the checksum of a block does not fit");
  summary_.digest = Crc32c(&crc32c, sizeof crc32c, summary_.digest);
  return absl::OkStatus();
}

absl::Status ShardFileReader::Skip() {
  std::vector<char> block;
  for (uint64_t left = header_.sections(next_section_++).bytes(); left > 0; left -= block.size()) {
    block.resize(std::min<uint64_t>(kBlockBytes, left));
    MUSTER_RETURN_IF_ERROR(ReadBlock(block));
  }
  return absl::OkStatus();
}

absl::StatusOr<ShardFileSummary> ShardFileReader::Finish() {
  while (next_section_ < header_.sections_size()) MUSTER_RETURN_IF_ERROR(Skip());
  char more;
  if (::read(fd_->get(), &more, 1) != 0) return Damaged("something follows its last section");
  return summary_;
}

}  // namespace muster
