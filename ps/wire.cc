#include "ps/wire.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/finite.h"
#include "kernels/float16.h"

namespace muster {
namespace {

static_assert(std::endian::native == std::endian::little, "floats travel as they lie in memory");

constexpr char kMagic[4] = {'M', 'P', 'S', '1'};
constexpr size_t kPrefixBytes = 8;
constexpr size_t kMaxHeaderBytes = 256 << 20;  // a batch of a million samples may name ten rows for each

// Copies `size` bytes at `offset` out of a list of slices; false if there are fewer.
bool CopyOut(const std::vector<grpc::Slice>& slices, size_t offset, size_t size, char* out) {
  for (const grpc::Slice& slice : slices) {
    if (offset >= slice.size()) {
      offset -= slice.size();
      continue;
    }
    const size_t n = std::min(size, slice.size() - offset);
    std::memcpy(out, slice.begin() + offset, n);
    out += n;
    size -= n;
    offset = 0;
    if (size == 0) return true;
  }
  return size == 0;
}

}  // namespace

FloatPayload::FloatPayload(std::vector<grpc::Slice> slices, size_t skip_bytes) : slices_(std::move(slices)) {
  size_t first = 0;
  while (first < slices_.size() && skip_bytes >= slices_[first].size()) skip_bytes -= slices_[first++].size();
  slices_.erase(slices_.begin(), slices_.begin() + static_cast<std::ptrdiff_t>(first));
  skip_bytes_ = skip_bytes;
  for (const grpc::Slice& slice : slices_) size_bytes_ += static_cast<int64_t>(slice.size());
  size_bytes_ -= static_cast<int64_t>(skip_bytes_);
}

FloatPayload FloatPayload::Part(int64_t begin, int64_t count) const {
  const int64_t size = static_cast<int64_t>(sizeof(float));
  return PartOfBytes(begin * size, count * size);
}

FloatPayload FloatPayload::PartOfBytes(int64_t begin, int64_t size) const {
  MUSTER_CHECK(begin >= 0 && size >= 0 && begin + size <= size_bytes_);
  FloatPayload part(slices_, skip_bytes_ + begin);
  part.size_bytes_ = size;
  return part;
}

// Calls combine(begin, bytes, count) for runs of the next `count` numbers of kBytes each, from the begin-th
// of them on. Slices begin at any byte, so a number may be split over several: it is put together in `split`.
// memcpy is how unaligned floats are read; compilers turn it into vector loads.
template <size_t kBytes, typename Combine>
void FloatPayload::Visit(Reader& reader, size_t count, Combine combine) {
  size_t begin = 0;
  unsigned char split[kBytes];
  size_t split_bytes = 0;
  while (begin < count) {
    const grpc::Slice& slice = reader.payload_.slices_[reader.slice_];
    const unsigned char* const bytes = slice.begin() + reader.skip_;
    const size_t size = slice.size() - reader.skip_;
    const size_t whole = split_bytes > 0 ? 0 : std::min(size / kBytes, count - begin);
    if (whole > 0) {
      combine(begin, bytes, whole);
      begin += whole;
      reader.skip_ += whole * kBytes;
    } else if (size > 0) {
      const size_t n = std::min(size, kBytes - split_bytes);
      std::memcpy(split + split_bytes, bytes, n);
      split_bytes += n;
      reader.skip_ += n;
      if (split_bytes == kBytes) {
        combine(begin++, split, size_t{1});
        split_bytes = 0;
      }
    }
    if (reader.skip_ == slice.size()) {
      ++reader.slice_;
      reader.skip_ = 0;
    }
  }
}

void FloatPayload::Reader::CopyTo(std::span<float> values) {
  Visit<sizeof(float)>(*this, values.size(),
                       [values](size_t begin, const unsigned char* bytes, size_t count) {
                         std::memcpy(values.data() + begin, bytes, count * sizeof(float));
                       });
}

void FloatPayload::Reader::AddTo(std::span<float> values) {
  Visit<sizeof(float)>(*this, values.size(),
                       [values](size_t begin, const unsigned char* bytes, size_t count) {
                         float* const destination = values.data() + begin;
                         for (size_t i = 0; i < count; ++i) {
                           float value;
                           std::memcpy(&value, bytes + i * sizeof(float), sizeof value);
                           destination[i] += value;
                         }
                       });
}

void FloatPayload::CopyTo(std::span<float> values) const {
  MUSTER_CHECK(static_cast<int64_t>(values.size_bytes()) == size_bytes_);
  Reader(*this).CopyTo(values);
}

void FloatPayload::Decode(ps::WireType type, float scale, std::span<float> values) const {
  MUSTER_CHECK(static_cast<int64_t>(values.size()) * WireBytes(type) == size_bytes_);
  if (type == ps::FLOAT32) {
    CopyTo(values);
  } else {
    Reader reader(*this);
    Visit<sizeof(uint16_t)>(reader, values.size(),
                            [&](size_t begin, const unsigned char* bytes, size_t count) {
                              const std::span<float> run = values.subspan(begin, count);
                              type == ps::FLOAT16 ? FromFloat16(bytes, run) : FromBfloat16(bytes, run);
                            });
  }
  if (scale == 1.0f) return;
  for (float& value : values) value *= scale;
}

int64_t WireBytes(ps::WireType type) {
  return type == ps::FLOAT32 ? static_cast<int64_t>(sizeof(float)) : static_cast<int64_t>(sizeof(uint16_t));
}

std::vector<std::span<const char>> FloatPayload::parts() const {
  std::vector<std::span<const char>> parts;
  size_t skip = skip_bytes_;
  size_t left = size_bytes_;
  for (const grpc::Slice& slice : slices_) {
    const size_t size = std::min(slice.size() - skip, left);
    parts.emplace_back(reinterpret_cast<const char*>(slice.begin()) + skip, size);
    left -= size;
    skip = 0;
  }
  return parts;
}

std::vector<grpc::Slice> FloatPayload::slices() const {
  std::vector<grpc::Slice> slices;
  size_t skip = skip_bytes_;
  size_t left = size_bytes_;
  for (const grpc::Slice& slice : slices_) {
    const size_t size = std::min(slice.size() - skip, left);
    if (size > 0) slices.push_back(slice.sub(skip, skip + size));
    left -= size;
    skip = 0;
  }
  return slices;
}

bool FloatPayload::AllFinite() const {
  bool all_finite = true;
  Reader reader(*this);
  Visit<sizeof(float)>(reader, size_bytes_ / sizeof(float),
                       [&](size_t, const unsigned char* bytes, size_t count) {
                         all_finite = all_finite && AllFiniteBytes(bytes, static_cast<int64_t>(count));
                       });
  return all_finite;
}

grpc::ByteBuffer EncodeFrame(const google::protobuf::MessageLite& header,
                             const std::vector<grpc::Slice>& payload) {
  const std::string bytes = header.SerializeAsString();
  MUSTER_CHECK(bytes.size() <= kMaxHeaderBytes);
  const uint32_t size = static_cast<uint32_t>(bytes.size());
  std::string front(kPrefixBytes, '\0');
  std::memcpy(front.data(), kMagic, sizeof kMagic);
  std::memcpy(front.data() + sizeof kMagic, &size, sizeof size);
  std::vector<grpc::Slice> slices = {grpc::Slice(front + bytes)};
  for (const grpc::Slice& slice : payload) {
    if (slice.size() > 0) slices.push_back(slice);
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string BytesOf(const grpc::ByteBuffer& frame) {
  std::vector<grpc::Slice> slices;
  std::string bytes(frame.Length(), '\0');
  if (!frame.Dump(&slices).ok()) return bytes;
  MUSTER_CHECK(CopyOut(slices, 0, bytes.size(), bytes.data()));
  return bytes;
}

grpc::Slice BorrowFloats(std::span<const float> values, std::shared_ptr<const void> lease) {
  return ShareBytes({reinterpret_cast<const char*>(values.data()), values.size_bytes()}, std::move(lease));
}

grpc::Slice ShareFloats(Floats values) {
  const std::span<const float> floats(*values);
  return BorrowFloats(floats, std::move(values));
}

grpc::Slice ShareBytes(std::span<const char> bytes, std::shared_ptr<const void> owner) {
  using Owner = std::shared_ptr<const void>;
  if (bytes.empty()) return grpc::Slice();
  // gRPC's slices are typed as mutable but never written to.
  return grpc::Slice(
      const_cast<char*>(bytes.data()), bytes.size(),
      [](void* user_data) { delete static_cast<Owner*>(user_data); }, new Owner(std::move(owner)));
}

void SetError(const absl::Status& status, ps::Error* error) {
  MUSTER_CHECK(!status.ok());
  error->set_code(static_cast<int>(status.code()));
  error->set_message(std::string(status.message()));
}

absl::Status StatusOf(const ps::Error& error, const std::string& who) {
  auto code = static_cast<absl::StatusCode>(error.code());
  // From another process: it may say anything, but not that all is well.
  if (code == absl::StatusCode::kOk || code == absl::StatusCode::kCancelled)
    code = absl::StatusCode::kUnknown;
  if (error.join_again()) code = absl::StatusCode::kCancelled;
  return absl::Status(code, who + ": " + error.message());
}

absl::Status DecodeFrame(const grpc::ByteBuffer& frame, google::protobuf::MessageLite* header,
                         FloatPayload* payload) {
  std::vector<grpc::Slice> slices;
  if (!frame.Dump(&slices).ok()) return InvalidArgument("an empty frame");
  char prefix[kPrefixBytes];
  if (!CopyOut(slices, 0, kPrefixBytes, prefix))
    return InvalidArgument("a frame of %d bytes", frame.Length());
  if (std::memcmp(prefix, kMagic, sizeof kMagic) != 0)
    return InvalidArgument("a frame with a wrong magic number");
  uint32_t header_bytes;
  std::memcpy(&header_bytes, prefix + sizeof kMagic, sizeof header_bytes);
  if (header_bytes > kMaxHeaderBytes || header_bytes > frame.Length() - kPrefixBytes)
    return InvalidArgument("a frame of %d bytes with a header of %d", frame.Length(), header_bytes);
  std::string bytes(header_bytes, '\0');
  if (!CopyOut(slices, kPrefixBytes, header_bytes, bytes.data()) || !header->ParseFromString(bytes)) {
    return InvalidArgument("a frame with a damaged header");
  }
  *payload = FloatPayload(std::move(slices), kPrefixBytes + header_bytes);
  return absl::OkStatus();
}

}  // namespace muster
