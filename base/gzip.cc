#include "base/gzip.h"

#include <zlib.h>

#include <algorithm>
#include <climits>
#include <memory>
#include <system_error>

namespace muster {
namespace {

struct InflateEnd {
  void operator()(z_stream* stream) const { inflateEnd(stream); }
};
struct DeflateEnd {
  void operator()(z_stream* stream) const { deflateEnd(stream); }
};

}  // namespace

bool IsGzip(std::string_view bytes) { return bytes.starts_with("\x1f\x8b"); }

std::string Gzip(std::string_view bytes) {
  MUSTER_CHECK(bytes.size() <= UINT_MAX);
  constexpr int kGzip = 16 + MAX_WBITS, kMemoryLevel = 8;
  z_stream stream{};
  MUSTER_CHECK(deflateInit2(&stream, Z_BEST_SPEED, Z_DEFLATED, kGzip, kMemoryLevel, Z_DEFAULT_STRATEGY) ==
               Z_OK);
  const std::unique_ptr<z_stream, DeflateEnd> owner(&stream);
  std::string packed(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  MUSTER_CHECK(deflate(&stream, Z_FINISH) == Z_STREAM_END, "there is room for all of it");
  packed.resize(stream.total_out);
  return packed;
}

absl::StatusOr<std::string> Gunzip(std::string_view packed, const std::string& name, size_t max_bytes) {
  MUSTER_CHECK(packed.size() <= UINT_MAX);
  z_stream stream{};
  constexpr int kGzipOnly = 16 + MAX_WBITS;
  if (inflateInit2(&stream, kGzipOnly) != Z_OK) return Internal("%s: zlib did not start", name);
  const std::unique_ptr<z_stream, InflateEnd> owner(&stream);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  stream.avail_in = static_cast<uInt>(packed.size());

  const auto taken = [&] { return packed.size() - stream.avail_in; };
  std::string bytes;  // the first `used` of them are unpacked, and there is room for one too many
  size_t used = 0;
  int result = Z_OK;
  while (result == Z_OK) {  // each turn takes input or ends, and the output is bounded
    if (used == bytes.size()) bytes.resize(std::min(max_bytes + 1, std::max<size_t>(used * 2, 1 << 16)));
    stream.next_out = reinterpret_cast<Bytef*>(bytes.data() + used);
    stream.avail_out = static_cast<uInt>(bytes.size() - used);
    result = inflate(&stream, Z_NO_FLUSH);
    used = bytes.size() - stream.avail_out;
    if (used > max_bytes) return InvalidArgument("%s: unpacks to more than %d bytes", name, max_bytes);
    // The file may have several members, one after the other (RFC 1952, 2.2).
    const std::string_view rest = packed.substr(taken());
    if (result == Z_STREAM_END && IsGzip(rest)) result = inflateReset(&stream);
  }
  if (result == Z_STREAM_END && stream.avail_in > 0) {
    return InvalidArgument("%s: byte %d: %d bytes after the end of the gzip data", name, taken(),
                           stream.avail_in);
  }
  if (result == Z_STREAM_END) {
    bytes.resize(used);
    return bytes;
  }
  if (result == Z_BUF_ERROR) return InvalidArgument("%s: byte %d: the gzip data is truncated", name, taken());
  return InvalidArgument("%s: byte %d: damaged gzip data (%s)", name, taken(),
                         stream.msg != nullptr ? stream.msg : "zlib gives no reason");
}

absl::StatusOr<std::filesystem::path> FindPlainOrGzip(const std::filesystem::path& folder,
                                                      const std::string& name) {
  for (const std::string& candidate : {name, name + ".gz"}) {
    std::error_code ignored;  // what cannot be looked at does not exist for us, and is named below
    if (std::filesystem::exists(folder / candidate, ignored)) return folder / candidate;
  }
  return NotFound("%s: there is neither %s nor %s.gz", folder.string(), name, name);
}

}  // namespace muster
