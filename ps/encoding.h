// How floats travel, to and from payloads: in 16 bits, and only those that matter. Gradients are encoded by
// workers, parameters by shards; what receives them goes on with floats.
#pragma once

#include <grpcpp/support/slice.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "kernels/parameter_layout.h"
#include "proto/parameter_server.pb.h"
#include "ps/job_config.h"
#include "ps/wire.h"

namespace muster {

struct EncodedFloats {
  ps::Encoding encoding;
  std::vector<grpc::Slice> payload;
};

/// Floats of a shard's range into `dense` and of the rows behind it into `rows`. What a sparse payload leaves
/// out stays as it is in `dense`. InvalidArgument, with nothing written: an encoding that this version does
/// not know, or another number of floats.
absl::Status DecodeFloats(const ps::Encoding& encoding, const FloatPayload& payload, std::span<float> dense,
                          std::span<float> rows);

/// Floats are as they were, all of them.
inline bool IsPlain(const ps::Encoding& encoding) {
  return encoding.type() == ps::FLOAT32 && !encoding.sparse();
}

/// A gradient with nothing left out, as FLOAT32: `payload` itself where it is that. `dense_size`: of the
/// shard's range; what is behind it are the rows'. Fails as DecodeFloats does.
absl::StatusOr<FloatPayload> DecodeGradient(const ps::Encoding& encoding, const FloatPayload& payload,
                                            int64_t dense_size);

/// `values` as they travel, without anything left out: a copy, or a share of those that travel as they are.
grpc::Slice EncodeFloats(std::span<const float> values, ps::WireType type, int exponent = 0);
grpc::Slice EncodeFloats(const Floats& values, ps::WireType type);

/// What a worker sends of its gradients. The part that top_k leaves out is added to the next gradient, and so
/// is what rounding took from the others ("error feedback"; Aji and Heafield, "Sparse communication for
/// distributed gradient descent", 2017). So this worker has a state; a process that takes its place begins
/// without one. What was sent is sent: if a push turns out to be stale, all that it brought is lost, as
/// without top_k. One thread at a time.
class GradientEncoder {
 public:
  GradientEncoder(const ps::JobConfig& config, int64_t layout_size);

  /// All floats travel as they are: there is nothing to encode.
  bool is_identity() const { return wire_type_ == ps::FLOAT32 && kept_.empty(); }

  /// Forgets what was left out.
  void Reset();

  /// The gradient to be encoded, [layout size + rows]: borrowed until the next one. What is sent of it, and
  /// how, does not depend on how many shards there are.
  void Begin(std::span<const float> gradient);

  /// Once for each shard: its range of the layout, and the gradients of its rows.
  EncodedFloats Encode(LayoutRange range, std::span<const float> rows);

 private:
  grpc::Slice EncodeSparse(LayoutRange range, ps::Encoding* encoding);

  const ps::WireType wire_type_;
  const int64_t sent_;       // numbers, of the layout; all: 0
  std::vector<float> kept_;  // [layout size] with top_k: the gradient and all that was left out before
  std::span<const float> gradient_;
  std::vector<int64_t> places_;  // in the layout, of what is sent
  int exponent_ = 0;
};

/// What a shard sends of its parameters: the same bytes to all who have the same, made once. Where gradients
/// are sparse it knows which parameters an update has changed, so that a worker that names the step of what
/// it has gets those alone, and has exactly what it would have had of all. One thread at a time.
class ParameterEncoder {
 public:
  /// `size` parameters after `step` updates.
  ParameterEncoder(const Compression& compression, int64_t size, uint64_t step);

  /// Otherwise OnUpdate needs to be told only that there was one.
  bool compares_updates() const { return !changed_.empty(); }

  /// The next update. Both [size], if they are compared.
  void OnUpdate(std::span<const float> before, std::span<const float> after);

  /// Those of the last update. `since`: the step of what the receiver has, if it has any.
  EncodedFloats Encode(const Floats& parameters, std::optional<uint64_t> since);

 private:
  void MakeSparse(std::span<const float> parameters, uint64_t since);

  const Compression compression_;
  const int64_t size_;
  uint64_t first_step_;
  uint64_t step_;
  std::vector<uint32_t> changed_;  // [size] with top_k: by which update after the first step; 0: by none
  // What was made last.
  std::optional<uint64_t> dense_step_;
  grpc::Slice dense_;
  std::optional<uint64_t> sparse_step_;
  uint64_t sparse_since_ = 0;
  std::optional<EncodedFloats> sparse_;  // unset: all of them are as short
};

}  // namespace muster
