#include "base/framing.h"

#include <algorithm>
#include <charconv>

namespace muster {
namespace {

constexpr std::string_view kMagic = "\nmuster-agent-protocol ";
constexpr size_t kMaxVersionDigits = 9;
constexpr size_t kLengthBytes = 4;

}  // namespace

std::string HelloLine(int version) { return absl::StrFormat("%s%d\n", kMagic, version); }

absl::Status CheckProtocolVersion(int their_version, std::string_view they, std::string_view we) {
  if (their_version == kAgentProtocolVersion) return absl::OkStatus();
  return FailedPrecondition(
      "%s speaks protocol version %d, %s version %d: use the same muster on both sides, or wait until the "
      "jobs of the "
      "other one have ended",
      they, their_version, we, kAgentProtocolVersion);
}

absl::StatusOr<bool> HelloScanner::Feed(std::string_view bytes) {
  buffer_.append(bytes);
  for (size_t start = buffer_.find(kMagic); start != std::string::npos;
       start = buffer_.find(kMagic, start + 1)) {
    const char* digits = buffer_.data() + start + kMagic.size();
    const char* limit = buffer_.data() + buffer_.size();
    const auto [end, error] = std::from_chars(digits, std::min(limit, digits + kMaxVersionDigits), version_);
    if (error != std::errc() || end == limit || *end != '\n') continue;
    rest_.assign(end + 1, limit);
    buffer_.resize(start);
    return true;
  }
  if (buffer_.size() <= max_noise_bytes_ + kMagic.size() + kMaxVersionDigits) return false;
  const size_t quoted = std::min<size_t>(buffer_.size(), 200);
  return InvalidArgument("%d bytes came, but no muster-agent; the last of them: %s", buffer_.size(),
                         buffer_.substr(buffer_.size() - quoted));
}

void AppendFrame(std::string& out, std::string_view payload) {
  MUSTER_CHECK(payload.size() <= kMaxFrameBytes);
  for (size_t i = 0; i < kLengthBytes; ++i) out += static_cast<char>(payload.size() >> (8 * i) & 0xff);
  out.append(payload);
}

void FrameDecoder::Feed(std::string_view bytes) {
  // Moves the rest to the front only when at least half is consumed: each byte is moved a bounded number of
  // times.
  if (consumed_ > buffer_.size() / 2) {
    buffer_.erase(0, consumed_);
    consumed_ = 0;
  }
  buffer_.append(bytes);
}

absl::StatusOr<std::optional<std::string>> FrameDecoder::Next() {
  const std::string_view left = std::string_view(buffer_).substr(consumed_);
  if (left.size() < kLengthBytes) return std::nullopt;
  size_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) length |= size_t{static_cast<unsigned char>(left[i])} << (8 * i);
  if (length > kMaxFrameBytes) {
    return InvalidArgument("a frame of %d bytes is longer than the %d allowed", length, kMaxFrameBytes);
  }
  if (left.size() - kLengthBytes < length) return std::nullopt;
  consumed_ += kLengthBytes + length;
  return std::string(left.substr(kLengthBytes, length));
}

}  // namespace muster
