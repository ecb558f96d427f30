#include "trainer/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <bit>
#include <climits>
#include <cstring>

#include "base/clock.h"
#include "base/crc32c.h"
#include "proto/tensorboard_event.pb.h"

namespace muster {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

constexpr int kMaxNameAttempts = 1000;

double WallTimeSeconds() { return static_cast<double>(WallTimeMicros()) * 1e-6; }

// A checksum of bytes that hold checksums says little, so TFRecord turns and shifts them.
uint32_t MaskedCrc32c(std::string_view bytes) {
  const uint32_t crc = Crc32c(bytes.data(), bytes.size());
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

template <typename T>
std::string LittleEndian(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

absl::StatusOr<std::string> HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  if (::gethostname(name, sizeof name - 1) != 0) return ErrnoError(errno, "gethostname");
  return std::string(name);
}

}  // namespace

absl::StatusOr<EventFile> EventFile::Create(const std::filesystem::path& folder) {
  const absl::Status made = MakeDirectories(folder);
  // That code says to main that another process has the port.
  if (absl::IsAlreadyExists(made)) return InvalidArgument("%s is no folder", folder.string());
  MUSTER_RETURN_IF_ERROR(made);
  MUSTER_ASSIGN_OR_RETURN(const std::string host, HostName());
  const int64_t now = WallTimeMicros() / 1'000'000;
  for (int64_t seconds = now; seconds < now + kMaxNameAttempts; ++seconds) {
    const std::filesystem::path path =
        folder / absl::StrFormat("events.out.tfevents.%010d.%s", seconds, host);
    UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644));
    if (!fd.valid() && errno == EEXIST) continue;
    if (!fd.valid()) return ErrnoError(errno, path.string());
    EventFile file(path, std::move(fd));
    tensorboard::Event version;
    version.set_wall_time(WallTimeSeconds());
    version.set_file_version("brain.Event:2");
    MUSTER_RETURN_IF_ERROR(file.WriteRecord(version.SerializeAsString()));
    return file;
  }
  return FailedPrecondition("%s holds event files of this host for each of the next %d seconds",
                            folder.string(), kMaxNameAttempts);
}

absl::Status EventFile::Write(uint64_t step, std::span<const Scalar> scalars) {
  tensorboard::Event event;
  event.set_wall_time(WallTimeSeconds());
  event.set_step(static_cast<int64_t>(step));
  for (const Scalar& scalar : scalars) {
    tensorboard::Summary::Value& value = *event.mutable_summary()->add_value();
    value.set_tag(scalar.tag);
    value.set_simple_value(static_cast<float>(scalar.value));
  }
  return WriteRecord(event.SerializeAsString());
}

absl::Status EventFile::WriteRecord(std::string_view event) {
  const std::string length = LittleEndian(uint64_t{event.size()});
  std::string record = length + LittleEndian(MaskedCrc32c(length));
  record.append(event);
  record += LittleEndian(MaskedCrc32c(event));
  return Annotate(WriteAll(fd_.get(), record), path_.string());
}

}  // namespace muster
