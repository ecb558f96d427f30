// IDX files, the format of MNIST (Y. LeCun, http://yann.lecun.com/exdb/mnist): big-endian magic 0x0000TTDD
// (type, number of dimensions), the dimensions as 32-bit numbers, then the elements. Only unsigned bytes
// (type 0x08) are read.
//
// Strict: a file that is not exactly what it claims is refused with its name and the offset of the first byte
// that is wrong.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace muster {

struct IdxArray {
  std::vector<int64_t> shape;
  std::vector<uint8_t> values;  // row-major
};

/// Reads IDX, plain or as gzip, told apart by content. InvalidArgument: damaged, truncated, trailing bytes,
/// another type or number of dimensions, more than 1 GiB; NotFound and others when the file cannot be read.
absl::StatusOr<IdxArray> ReadIdxFile(const std::filesystem::path& path, int dimensions);

/// The same from memory; `name` stands in errors.
absl::StatusOr<IdxArray> ParseIdx(std::string_view bytes, int dimensions, const std::string& name);

}  // namespace muster
