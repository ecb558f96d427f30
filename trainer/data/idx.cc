#include "trainer/data/idx.h"

#include <zlib.h>

#include <algorithm>
#include <memory>

#include "base/file.h"

namespace muster {
namespace {

constexpr size_t kMaxBytes = size_t{1} << 30;
constexpr uint8_t kUnsignedByte = 0x08;
constexpr std::string_view kGzipMagic = "\x1f\x8b";

struct InflateEnd {
  void operator()(z_stream* stream) const { inflateEnd(stream); }
};

// Offsets in errors count bytes of the packed file.
absl::StatusOr<std::string> Gunzip(std::string_view packed, const std::string& name) {
  z_stream stream{};
  constexpr int kGzipOnly = 16 + MAX_WBITS;
  if (inflateInit2(&stream, kGzipOnly) != Z_OK) return Internal("%s: zlib did not start", name);
  const std::unique_ptr<z_stream, InflateEnd> owner(&stream);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());

  std::string bytes;
  int result = Z_OK;
  while (result == Z_OK) {  // each turn takes input or ends, and the output is bounded
    if (bytes.size() == kMaxBytes)
      return InvalidArgument("%s: unpacks to more than %d bytes", name, kMaxBytes);
    const size_t old_size = bytes.size();
    bytes.resize(std::min(kMaxBytes, std::max<size_t>(old_size * 2, 1 << 16)));
    stream.next_out = reinterpret_cast<Bytef*>(bytes.data() + old_size);
    stream.avail_out = static_cast<uInt>(bytes.size() - old_size);
    result = inflate(&stream, Z_NO_FLUSH);
    bytes.resize(bytes.size() - stream.avail_out);
  }
  if (result == Z_STREAM_END && stream.avail_in > 0) {
    return InvalidArgument("%s: byte %d: %d bytes after the end of the gzip data", name, stream.total_in,
                           stream.avail_in);
  }
  if (result == Z_STREAM_END) return bytes;
  if (result == Z_BUF_ERROR)
    return InvalidArgument("%s: byte %d: the gzip data is truncated", name, stream.total_in);
  return InvalidArgument("%s: byte %d: damaged gzip data (%s)", name, stream.total_in,
                         stream.msg != nullptr ? stream.msg : "zlib gives no reason");
}

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
  MUSTER_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path, kMaxBytes));
  if (!bytes.starts_with(kGzipMagic)) return ParseIdx(bytes, dimensions, path.string());
  MUSTER_ASSIGN_OR_RETURN(const std::string unpacked, Gunzip(bytes, path.string()));
  return ParseIdx(unpacked, dimensions, path.string() + " (unpacked)");
}

}  // namespace muster
