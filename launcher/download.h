// One file over HTTP or HTTPS, by libcurl.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace muster {

struct DownloadOptions {
  Duration connect_timeout = std::chrono::seconds(5);  // for name, connection and TLS together
  Duration stall_timeout = std::chrono::seconds(15);   // with less than 1 kB/s; whole seconds
  uint64_t max_bytes = uint64_t{1} << 30;
  /// Bytes that are there and bytes of the whole file (0: not known), many times a second.
  std::function<void(uint64_t bytes, uint64_t total)> progress;
};

/// InvalidArgument if it is no URL of http or https.
absl::Status CheckUrl(const std::string& url);

/// Appends what `url` has to the file that `fd` has open for appending: only what is missing (HTTP Range),
/// where the server can do that, and from the start where it cannot. Nothing is missing where the server says
/// that the file is not longer; whether it is the right one is for the caller to find out. Follows at most 5
/// redirections. Proxies are libcurl's matter (the variables http_proxy, https_proxy, no_proxy). What has
/// come when it fails stays in the file. Blocks; any thread, one per file.
///
/// Unavailable: not reached in time, or cut off, or stalled. NotFound: the server answered that it does not
/// give the file. DataLoss: larger than allowed. Internal: the file could not be written.
absl::Status Download(const std::string& url, int fd, const DownloadOptions& options);

}  // namespace muster
