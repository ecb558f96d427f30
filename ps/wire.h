// Frames of proto/parameter_server.proto: a protobuf header and raw floats in one gRPC message, the floats
// never copied into or out of a protobuf. Slices are reference-counted by gRPC; a payload keeps what it was
// received in alive.
#pragma once

#include <google/protobuf/message_lite.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "proto/parameter_server.pb.h"

namespace muster {

/// Of ClientHeader and ServerHeader.
inline constexpr uint32_t kWireVersion = 10;

/// The largest message that either end accepts, which is gRPC's limit: one shard's floats and a header.
inline constexpr int64_t kMaxFrameBytes = std::numeric_limits<int32_t>::max();

/// How long a network that is slow for a cluster may take for so much: more than this is silence.
inline Duration TimeToSend(int64_t bytes) {
  constexpr int64_t kBytesPerSecond = 25'000'000;
  return std::chrono::milliseconds(bytes * 1000 / kBytesPerSecond);
}

/// What is sent; never changed once somebody reads it.
using Floats = std::shared_ptr<const std::vector<float>>;

/// Received numbers, in as many pieces as the transport delivered them in: floats, unless a method says
/// otherwise. Copies share the bytes.
class FloatPayload {
 public:
  FloatPayload() = default;
  FloatPayload(std::vector<grpc::Slice> slices, size_t skip_bytes);

  int64_t size_bytes() const { return size_bytes_; }

  /// `count` floats from float `begin` on; it has as many.
  FloatPayload Part(int64_t begin, int64_t count) const;
  FloatPayload PartOfBytes(int64_t begin, int64_t size) const;

  /// values = payload. `values` must hold size_bytes() / 4 floats exactly.
  void CopyTo(std::span<float> values) const;

  /// values = payload * scale, of numbers of that type. `values` must hold as many exactly.
  void Decode(ps::WireType type, float scale, std::span<float> values) const;

  /// Reads floats one after the other, not more than there are. Does not outlive the payload.
  class Reader {
   public:
    explicit Reader(const FloatPayload& payload) : payload_(payload), skip_(payload.skip_bytes_) {}
    /// values = the next ones, values += the next ones.
    void CopyTo(std::span<float> values);
    void AddTo(std::span<float> values);

   private:
    friend class FloatPayload;
    const FloatPayload& payload_;
    size_t slice_ = 0;
    size_t skip_;  // bytes of that slice
  };

  /// None of them is NaN or infinite.
  bool AllFinite() const;

  /// Where they lie, one part after the other.
  std::vector<std::span<const char>> parts() const;

  /// The same, to be sent again.
  std::vector<grpc::Slice> slices() const;

 private:
  template <size_t kBytes, typename Combine>
  static void Visit(Reader& reader, size_t count, Combine combine);

  std::vector<grpc::Slice> slices_;
  size_t skip_bytes_ = 0;  // of the first slice
  int64_t size_bytes_ = 0;
};

/// A frame whose payload, the slices one after the other, is sent from where it lies; they keep the floats
/// alive (and unchanged) until they are sent.
grpc::ByteBuffer EncodeFrame(const google::protobuf::MessageLite& header,
                             const std::vector<grpc::Slice>& payload = {});

/// A copy of a small one.
std::string BytesOf(const grpc::ByteBuffer& frame);

/// Bytes of one number on the wire.
int64_t WireBytes(ps::WireType type);

/// A slice over floats that the caller keeps unchanged as long as it has a share of `lease`.
grpc::Slice BorrowFloats(std::span<const float> values, std::shared_ptr<const void> lease = nullptr);

/// A slice that shares ownership of an immutable buffer.
grpc::Slice ShareFloats(Floats values);

/// A slice over bytes that `owner` keeps alive and unchanged.
grpc::Slice ShareBytes(std::span<const char> bytes, std::shared_ptr<const void> owner);

/// An error on the wire, to and from a status that is not OK. Cancelled: the receiver is to join again, and
/// nothing else is.
void SetError(const absl::Status& status, ps::Error* error);
absl::Status StatusOf(const ps::Error& error, const std::string& who);

/// Splits a frame. InvalidArgument: too short, wrong magic, a header that does not parse.
absl::Status DecodeFrame(const grpc::ByteBuffer& frame, google::protobuf::MessageLite* header,
                         FloatPayload* payload);

}  // namespace muster
