// Files that may be packed with gzip (RFC 1952), as data sets are.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/status.h"

namespace muster {

/// Whether the bytes begin as gzip data does.
bool IsGzip(std::string_view bytes);

/// `bytes`, less than 4 GiB, packed rather soon than small.
std::string Gzip(std::string_view bytes);

/// What `packed`, less than 4 GiB, unpacks to. InvalidArgument with `name` and the offset in the packed
/// bytes: damaged, truncated, bytes after the end, more than `max_bytes` when unpacked.
absl::StatusOr<std::string> Gunzip(std::string_view packed, const std::string& name, size_t max_bytes);

/// `folder`/`name`, or the same with .gz appended where there is no plain one. NotFound names both.
absl::StatusOr<std::filesystem::path> FindPlainOrGzip(const std::filesystem::path& folder,
                                                      const std::string& name);

}  // namespace muster
