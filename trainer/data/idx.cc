#include "trainer/data/idx.h"

#include "base/file.h"
#include "base/gzip.h"

namespace muster {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 30;
constexpr uint8_t kUnsignedByte = 0x08;

uint32_t BigEndian32(std::string_view bytes, size_t offset) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<uint8_t>(bytes[offset + i]);
  return value;
}

}  // namespace

absl::StatusOr<IdxArray> ParseIdx(std::string_view bytes, int dimensions, const std::string& name) {
  const size_t header_size = 4 + 4 * static_cast<size_t>(dimensions);
  if (bytes.size() < header_size) {
    return InvalidArgument(
        "%s: byte %d: the header of an IDX file of %d dimensions takes %d bytes, and the file ends here",
        name, bytes.size(), dimensions, header_size);
  }
  if (bytes[0] != 0 || bytes[1] != 0)
    return InvalidArgument("%s: byte %d: not an IDX file", name, bytes[0] != 0 ? 0 : 1);
  if (static_cast<uint8_t>(bytes[2]) != kUnsignedByte) {
    return InvalidArgument("%s: byte 2: elements of type 0x%02x; this reads only unsigned bytes, 0x08", name,
                           static_cast<uint8_t>(bytes[2]));
  }
  if (static_cast<uint8_t>(bytes[3]) != dimensions) {
    return InvalidArgument("%s: byte 3: %d dimensions where %d are expected", name,
                           static_cast<uint8_t>(bytes[3]), dimensions);
  }
  IdxArray array;
  size_t size = 1;
  for (int d = 0; d < dimensions; ++d) {
    const size_t offset = 4 + 4 * static_cast<size_t>(d);
    const uint32_t dimension = BigEndian32(bytes, offset);
    if (dimension > 0 && size > kMaxBytes / dimension) {
      return InvalidArgument("%s: byte %d: with a dimension of %d the file would be larger than %d bytes",
                             name, offset, dimension, kMaxBytes);
    }
    size *= dimension;
    array.shape.push_back(dimension);
  }
  if (bytes.size() < header_size + size) {
    return InvalidArgument("%s: byte %d: truncated; %d bytes are missing", name, bytes.size(),
                           header_size + size - bytes.size());
  }
  if (bytes.size() > header_size + size) {
    return InvalidArgument("%s: byte %d: %d bytes after the last element", name, header_size + size,
                           bytes.size() - header_size - size);
  }
  array.values.assign(bytes.begin() + header_size, bytes.end());
  return array;
}

absl::StatusOr<IdxArray> ReadIdxFile(const std::filesystem::path& path, int dimensions) {
  MUSTER_ASSIGN_OR_RETURN(const std::string bytes, ReadRegularFile(path, kMaxBytes));
  if (!IsGzip(bytes)) return ParseIdx(bytes, dimensions, path.string());
  MUSTER_ASSIGN_OR_RETURN(const std::string unpacked, Gunzip(bytes, path.string(), kMaxBytes));
  return ParseIdx(unpacked, dimensions, path.string() + " (unpacked)");
}

}  // namespace muster
