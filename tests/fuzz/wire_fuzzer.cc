// Frames as they come from the network, cut into slices as gRPC may cut them.
#include <algorithm>
#include <vector>

#include "proto/parameter_server.pb.h"
#include "proto/replication.pb.h"
#include "ps/encoding.h"
#include "ps/wire.h"

namespace {

// Whoever gets a payload reads all of it, in parts.
void Read(const muster::FloatPayload& payload) {
  std::vector<float> values(static_cast<size_t>(payload.size_bytes()) / sizeof(float));
  payload.CopyTo(values);
  muster::FloatPayload::Reader(payload).AddTo(values);
  (void)payload.AllFinite();
  const auto count = static_cast<int64_t>(values.size());
  std::vector<float> part(values.size() - values.size() / 3);
  payload.Part(count / 3, static_cast<int64_t>(part.size())).CopyTo(part);
  size_t bytes = 0;
  for (const auto& span : payload.parts()) bytes += span.size();
  MUSTER_CHECK(bytes == static_cast<size_t>(payload.size_bytes()));
}

muster::FloatPayload WholeFloats(const muster::FloatPayload& payload) {
  return payload.Part(0, payload.size_bytes() / static_cast<int64_t>(sizeof(float)));
}

// As a gradient, and as parameters.
void ReadAs(const muster::ps::Encoding& encoding, const muster::FloatPayload& payload) {
  constexpr int64_t kSize = 100;
  const auto gradient = muster::DecodeGradient(encoding, payload, kSize);
  if (gradient.ok()) {
    MUSTER_CHECK(gradient->size_bytes() >= kSize * static_cast<int64_t>(sizeof(float)));
    Read(*gradient);
  }
  std::vector<float> parameters(kSize), rows(3);
  const bool has_read = muster::DecodeFloats(encoding, payload, parameters, rows).ok();
  MUSTER_CHECK(!has_read || gradient.ok());
}

}  // namespace

// The first byte says how long slices are.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace muster;
  if (size == 0) return 0;
  const size_t length = 1 + data[0];
  std::vector<grpc::Slice> slices;
  for (size_t begin = 1; begin < size; begin += length)
    slices.emplace_back(data + begin, std::min(length, size - begin));
  const grpc::ByteBuffer frame(slices.data(), slices.size());
  FloatPayload payload;
  if (ps::ClientHeader header; DecodeFrame(frame, &header, &payload).ok()) {
    Read(WholeFloats(payload));
    ReadAs(header.encoding(), payload);
    replication::Message message;
    (void)message.ParseFromString(header.replication());
  }
  if (ps::ServerHeader header; DecodeFrame(frame, &header, &payload).ok()) {
    Read(WholeFloats(payload));
    ReadAs(header.encoding(), payload);
    if (header.has_error()) (void)StatusOf(header.error(), "a server");
  }
  return 0;
}
