// Event files, which TensorBoard draws curves from: records framed as TFRecord (tensorflow, "TFRecord and
// tf.train.Example"; 8 bytes little-endian length, its masked CRC-32C, the event, its masked CRC-32C) of
// Event messages (proto/tensorboard_event.proto).
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/file.h"
#include "base/status.h"

namespace muster {

/// A point of the curve `tag`.
struct Scalar {
  std::string tag;
  double value = 0;
};

/// Adds events to a file of its own; each is with the system when Write returns. One thread at a time.
class EventFile {
 public:
  /// Makes `folder` if needed, and in it a new file events.out.tfevents.SECONDS.HOSTNAME: SECONDS since the
  /// Unix epoch, later ones while there is a file of that name. So whoever is started again never adds to a
  /// file that it may have left torn; TensorBoard reads them one after the other.
  /// InvalidArgument: there is a file where the folder should be.
  static absl::StatusOr<EventFile> Create(const std::filesystem::path& folder);

  /// All of `scalars` at this step, as one event.
  absl::Status Write(uint64_t step, std::span<const Scalar> scalars);

  const std::filesystem::path& path() const { return path_; }

 private:
  EventFile(std::filesystem::path path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  absl::Status WriteRecord(std::string_view event);

  std::filesystem::path path_;
  UniqueFd fd_;
};

}  // namespace muster
