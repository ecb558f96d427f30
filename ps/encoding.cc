#include "ps/encoding.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "kernels/float16.h"
#include "kernels/top_k.h"
#include "kernels/vectorize.h"

namespace muster {
namespace {

constexpr int kLargestExponent = 120;  // either way: two to it is a normal float

// Where the largest number of a gradient goes, so that the others lose nothing below as long as they can.
constexpr int kFloat16Exponent = 15;

float PowerOfTwo(int exponent) { return std::ldexp(1.0f, exponent); }

void ToWire(std::span<const float> values, ps::WireType type, int exponent, char* out) {
  if (type == ps::FLOAT32) {
    if (!values.empty()) std::memcpy(out, values.data(), values.size_bytes());
    return;
  }
  const float scale = PowerOfTwo(-exponent);
  std::array<float, 1024> scaled;
  std::array<uint16_t, 1024> halves;
  while (!values.empty()) {
    const size_t count = std::min(values.size(), halves.size());
    for (size_t i = 0; i < count; ++i) scaled[i] = values[i] * scale;
    const std::span<const float> from(scaled.data(), count);
    const std::span<uint16_t> to(halves.data(), count);
    type == ps::FLOAT16 ? ToFloat16(from, to) : ToBfloat16(from, to);
    std::memcpy(out, halves.data(), to.size_bytes());
    out += to.size_bytes();
    values = values.subspan(count);
  }
}

// Places of [0, size); false: there is one outside.
template <typename Visit>
bool VisitPlaces(const ps::Encoding& encoding, int64_t size, Visit visit) {
  int64_t next = 0;
  for (const uint32_t gap : encoding.gaps()) {
    const int64_t place = next + gap;
    if (place >= size) return false;
    visit(place);
    next = place + 1;
  }
  return true;
}

absl::Status CheckEncoding(const ps::Encoding& encoding, const FloatPayload& payload, int64_t dense_size,
                           int64_t* row_floats) {
  const bool is_known = ps::WireType_IsValid(encoding.type()) &&
                        std::abs(int64_t{encoding.exponent()}) <= kLargestExponent &&
                        (encoding.exponent() == 0 || encoding.type() == ps::FLOAT16) &&
                        (encoding.gaps().empty() || encoding.sparse());
  if (!is_known) {
    return InvalidArgument("floats in a form that this version does not know (%d, %d)", encoding.type(),
                           encoding.exponent());
  }
  const int64_t dense = encoding.sparse() ? encoding.gaps_size() : dense_size;
  const int64_t bytes = WireBytes(encoding.type());
  *row_floats = payload.size_bytes() / bytes - dense;
  if (payload.size_bytes() % bytes != 0 || *row_floats < 0) {
    return InvalidArgument("a payload of %d bytes for %d numbers of %d and rows", payload.size_bytes(), dense,
                           bytes);
  }
  if (!VisitPlaces(encoding, dense_size, [](int64_t) {})) {
    return InvalidArgument("numbers beyond the %d of a shard", dense_size);
  }
  return absl::OkStatus();
}

// Of what CheckEncoding has nothing against.
void Decode(const ps::Encoding& encoding, const FloatPayload& payload, std::span<float> dense,
            std::span<float> rows) {
  const float scale = PowerOfTwo(encoding.exponent());
  std::vector<float> found(encoding.gaps_size());
  const std::span<float> first = encoding.sparse() ? std::span(found) : dense;
  const int64_t first_bytes = static_cast<int64_t>(first.size()) * WireBytes(encoding.type());
  payload.PartOfBytes(0, first_bytes).Decode(encoding.type(), scale, first);
  payload.PartOfBytes(first_bytes, payload.size_bytes() - first_bytes).Decode(encoding.type(), scale, rows);
  if (!encoding.sparse()) return;
  const float* value = found.data();
  VisitPlaces(encoding, static_cast<int64_t>(dense.size()), [&](int64_t place) { dense[place] = *value++; });
}

MUSTER_VECTORIZE void MarkChanges(const float* before, const float* after, size_t size, uint32_t update,
                                  uint32_t* changed) {
  for (size_t i = 0; i < size; ++i) {
    const bool is_same = std::bit_cast<uint32_t>(before[i]) == std::bit_cast<uint32_t>(after[i]);
    changed[i] = is_same ? changed[i] : update;
  }
}

}  // namespace

absl::Status DecodeFloats(const ps::Encoding& encoding, const FloatPayload& payload, std::span<float> dense,
                          std::span<float> rows) {
  int64_t row_floats = 0;
  MUSTER_RETURN_IF_ERROR(CheckEncoding(encoding, payload, static_cast<int64_t>(dense.size()), &row_floats));
  if (row_floats != static_cast<int64_t>(rows.size())) {
    return InvalidArgument("%d numbers for rows of %d", row_floats, rows.size());
  }
  Decode(encoding, payload, dense, rows);
  return absl::OkStatus();
}

absl::StatusOr<FloatPayload> DecodeGradient(const ps::Encoding& encoding, const FloatPayload& payload,
                                            int64_t dense_size) {
  int64_t row_floats = 0;
  MUSTER_RETURN_IF_ERROR(CheckEncoding(encoding, payload, dense_size, &row_floats));
  if (IsPlain(encoding)) return payload;
  auto values = std::make_shared<std::vector<float>>(dense_size + row_floats);
  const std::span<float> all(*values);
  Decode(encoding, payload, all.first(dense_size), all.subspan(dense_size));
  return FloatPayload({ShareFloats(std::move(values))}, 0);
}

grpc::Slice EncodeFloats(std::span<const float> values, ps::WireType type, int exponent) {
  const auto bytes = std::make_shared<std::vector<char>>(values.size() * WireBytes(type));
  ToWire(values, type, exponent, bytes->data());
  return ShareBytes(*bytes, bytes);
}

grpc::Slice EncodeFloats(const Floats& values, ps::WireType type) {
  return type == ps::FLOAT32 ? ShareFloats(values) : EncodeFloats(std::span(*values), type);
}

GradientEncoder::GradientEncoder(const ps::JobConfig& config, int64_t layout_size)
    : wire_type_(config.wire_type()),
      sent_(static_cast<int64_t>(std::ceil(config.top_k() * static_cast<double>(layout_size)))),
      kept_(sent_ > 0 ? layout_size : 0) {}

void GradientEncoder::Reset() { std::fill(kept_.begin(), kept_.end(), 0.0f); }

void GradientEncoder::Begin(std::span<const float> gradient) {
  gradient_ = gradient;
  for (size_t i = 0; i < kept_.size(); ++i) kept_[i] += gradient[i];
  if (!kept_.empty()) LargestMagnitudes(kept_, sent_, &places_);
  exponent_ = 0;
  if (wire_type_ != ps::FLOAT16) return;
  const float largest = std::max(LargestMagnitude(kept_), LargestMagnitude(gradient.subspan(kept_.size())));
  if (largest == 0 || !std::isfinite(largest)) return;
  exponent_ = std::clamp(std::ilogb(largest) + 1 - kFloat16Exponent, -kLargestExponent, kLargestExponent);
}

EncodedFloats GradientEncoder::Encode(LayoutRange range, std::span<const float> rows) {
  EncodedFloats encoded;
  encoded.encoding.set_type(wire_type_);
  encoded.encoding.set_exponent(exponent_);
  if (kept_.empty()) {
    encoded.payload.push_back(
        EncodeFloats(gradient_.subspan(range.begin, range.size()), wire_type_, exponent_));
  } else {
    encoded.payload.push_back(EncodeSparse(range, &encoded.encoding));
  }
  encoded.payload.push_back(EncodeFloats(rows, wire_type_, exponent_));
  return encoded;
}

// What is sent is taken out of what is kept, as it will be read.
grpc::Slice GradientEncoder::EncodeSparse(LayoutRange range, ps::Encoding* encoding) {
  encoding->set_sparse(true);
  const auto first = std::lower_bound(places_.begin(), places_.end(), range.begin);
  const auto last = std::lower_bound(first, places_.end(), range.end);
  std::vector<float> values;
  int64_t next = range.begin;
  for (auto place = first; place != last; ++place) {
    encoding->add_gaps(static_cast<uint32_t>(*place - next));
    values.push_back(kept_[*place]);
    next = *place + 1;
  }
  grpc::Slice bytes = EncodeFloats(values, wire_type_, exponent_);
  FloatPayload({bytes}, 0).Decode(wire_type_, PowerOfTwo(exponent_), values);
  for (auto place = first; place != last; ++place) kept_[*place] -= values[place - first];
  return bytes;
}

ParameterEncoder::ParameterEncoder(const Compression& compression, int64_t size, uint64_t step)
    : compression_(compression),
      size_(size),
      first_step_(step),
      step_(step),
      changed_(compression.top_k > 0 ? size : 0) {}

void ParameterEncoder::OnUpdate(std::span<const float> before, std::span<const float> after) {
  ++step_;
  if (changed_.empty()) return;
  const uint64_t update = step_ - first_step_;
  if (update > std::numeric_limits<uint32_t>::max()) {  // begins to count anew: all get all once
    first_step_ = step_;
    std::fill(changed_.begin(), changed_.end(), 0);
    return;
  }
  MarkChanges(before.data(), after.data(), size_, static_cast<uint32_t>(update), changed_.data());
}

EncodedFloats ParameterEncoder::Encode(const Floats& parameters, std::optional<uint64_t> since) {
  if (since && !changed_.empty() && *since >= first_step_ && *since <= step_) {
    if (sparse_step_ != step_ || sparse_since_ != *since) MakeSparse(*parameters, *since);
    if (sparse_) return *sparse_;
  }
  EncodedFloats encoded;
  encoded.encoding.set_type(compression_.wire_type);
  if (compression_.wire_type == ps::FLOAT32) {
    encoded.payload.push_back(ShareFloats(parameters));  // not kept: it would keep their buffer from use
    return encoded;
  }
  if (dense_step_ != step_) {
    dense_ = EncodeFloats(parameters, compression_.wire_type);
    dense_step_ = step_;
  }
  encoded.payload.push_back(dense_);
  return encoded;
}

// Not if all of them take no more bytes.
void ParameterEncoder::MakeSparse(std::span<const float> parameters, uint64_t since) {
  sparse_step_ = step_;
  sparse_since_ = since;
  sparse_.reset();
  const auto has_changed = [oldest = since - first_step_](uint32_t update) { return update > oldest; };
  const auto count = std::count_if(changed_.begin(), changed_.end(), has_changed);
  constexpr int64_t kBytesOfGap = 1;  // most of them
  const int64_t bytes = WireBytes(compression_.wire_type);
  if (count * (bytes + kBytesOfGap) >= size_ * bytes) return;
  sparse_.emplace();
  sparse_->encoding.set_type(compression_.wire_type);
  sparse_->encoding.set_sparse(true);
  sparse_->encoding.mutable_gaps()->Reserve(static_cast<int>(count));
  std::vector<float> values;
  values.reserve(count);
  int64_t next = 0;
  for (int64_t i = 0; i < size_; ++i) {
    if (!has_changed(changed_[i])) continue;
    sparse_->encoding.add_gaps(static_cast<uint32_t>(i - next));
    values.push_back(parameters[i]);
    next = i + 1;
  }
  sparse_->payload.push_back(EncodeFloats(values, compression_.wire_type));
}

}  // namespace muster
