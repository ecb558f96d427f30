#include "collective/peer_group.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "collective/parts.h"
#include "kernels/elementwise.h"

namespace muster {
namespace {

// Up to so many bytes all of the range is exchanged at once. Measured: bench/RESULTS.md.
constexpr size_t kDoublingBytes = 64 << 10;
// What is sent between ranks of one machine, but not received yet, lies in its memory: while that is little,
// it stays in cache. By that much a rank of a ring is ahead there with sending of what it has received, as
// all are.
constexpr int64_t kMostAhead = 192 << 10;
// There and back. Other machines take longer, and any that do not lose nothing: a link of 100 Gbit/s carries
// no more in that time. Hosts that share a machine may have a slow link too, with a queue that is to be full.
constexpr Duration kSameMachine = std::chrono::microseconds(15);
constexpr Duration kQueued = std::chrono::milliseconds(1);
constexpr size_t kScratchFloats = 64 << 10;  // of what is added as it comes: stays in cache

int Modulo(int value, int count) { return ((value % count) + count) % count; }

// All of one range for all of another.
class SwapFlow final : public Flow {
 public:
  SwapFlow(std::span<const std::byte> send, std::span<std::byte> receive) : send_(send), receive_(receive) {}
  std::span<const std::byte> ToSend() override { return send_; }
  void Sent(size_t bytes) override { send_ = send_.subspan(bytes); }
  std::span<std::byte> Room() override { return receive_; }
  void Received(size_t bytes) override { receive_ = receive_.subspan(bytes); }
  bool is_done() const override { return send_.empty() && receive_.empty(); }

 private:
  std::span<const std::byte> send_;
  std::span<std::byte> receive_;
};

// From rank to rank, as it comes; the first one sends only, the last one receives only.
class ChainFlow final : public Flow {
 public:
  ChainFlow(std::span<std::byte> data, bool is_first, bool is_last)
      : data_(data), received_(is_first ? data.size() : 0), sent_(is_last ? data.size() : 0) {}
  std::span<const std::byte> ToSend() override {
    return sent_ < received_ ? std::span<const std::byte>(data_).subspan(sent_, received_ - sent_)
                             : std::span<const std::byte>();
  }
  void Sent(size_t bytes) override { sent_ += bytes; }
  std::span<std::byte> Room() override { return data_.subspan(received_); }
  void Received(size_t bytes) override { received_ += bytes; }
  bool is_done() const override { return sent_ == data_.size() && received_ == data_.size(); }

 private:
  const std::span<std::byte> data_;
  size_t received_, sent_;
};

// Rounds in which each rank sends the part that it received in the one before: at first its own. In round t
// part index - t leaves and part index - t - 1 comes.
//
// A rank that is too far ahead receives before it sends more. All together have received what all have sent,
// so that one of them is not ahead when nothing is on its way; and who waits for something to pass on has
// sent more than it has received, by its own part: that one can send.
class RingFlow : public Flow {
 public:
  RingFlow(int index, int count, int rounds, int64_t most_ahead)
      : index_(index), count_(count), rounds_(rounds), most_ahead_(most_ahead) {}

  std::span<const std::byte> ToSend() override {
    SkipEmpty();
    if (send_round_ == rounds_) return {};
    const std::span<const std::byte> part = SendPart(send_round_);
    size_t end = part.size();
    if (send_round_ > 0 && send_round_ - 1 >= receive_round_) {
      end = send_round_ - 1 == receive_round_ ? processed_ : 0;
    }
    if (receive_round_ == rounds_) return part.subspan(sent_, end - sent_);
    const auto may_be_sent = static_cast<size_t>(std::max<int64_t>(0, most_ahead_ - ahead_));
    return part.subspan(sent_, std::min(end - sent_, may_be_sent));
  }
  void Sent(size_t bytes) override {
    sent_ += bytes;
    ahead_ += static_cast<int64_t>(bytes);
    SkipEmpty();
  }
  bool is_done() const override { return send_round_ == rounds_ && receive_round_ == rounds_; }

 protected:
  virtual std::span<const std::byte> SendPart(int round) = 0;
  virtual size_t PartBytes(int part) const = 0;

  int SendIndex(int round) const { return Modulo(index_ - round, count_); }
  int ReceiveIndex(int round) const { return Modulo(index_ - round - 1, count_); }
  int receive_round() const { return receive_round_; }
  int rounds() const { return rounds_; }
  size_t processed() const { return processed_; }

  // Of the part that comes in this round, so many bytes more may go on.
  void Process(size_t bytes) {
    processed_ += bytes;
    ahead_ -= static_cast<int64_t>(bytes);
    SkipEmpty();
  }

  // Rounds that are over, or have nothing to send or to receive.
  void SkipEmpty() {
    while (receive_round_ < rounds_ && processed_ == PartBytes(ReceiveIndex(receive_round_))) {
      ++receive_round_;
      processed_ = 0;
    }
    while (send_round_ < rounds_ && sent_ == PartBytes(SendIndex(send_round_)) &&
           (send_round_ == 0 || send_round_ - 1 < receive_round_)) {
      ++send_round_;
      sent_ = 0;
    }
  }

 private:
  const int index_, count_, rounds_;
  const int64_t most_ahead_;
  int send_round_ = 0, receive_round_ = 0;
  size_t sent_ = 0, processed_ = 0;  // bytes of the part of the round
  int64_t ahead_ = 0;                // bytes that are sent, less those that are received
};

// In the first n - 1 rounds a part is added to on its way, and is whole with the last one; in as many more it
// goes round once again.
class RingSumFlow final : public RingFlow {
 public:
  RingSumFlow(int index, int count, std::span<const float> input, std::span<float> output,
              std::span<float> scratch, int64_t most_ahead)
      : RingFlow(index, count, 2 * (count - 1), most_ahead),
        count_(count),
        input_(input),
        output_(output),
        scratch_(std::as_writable_bytes(scratch)) {
    SkipEmpty();
  }

  std::span<std::byte> Room() override {
    if (receive_round() == rounds()) return {};
    const LayoutRange part = Part(ReceiveIndex(receive_round()));
    const size_t bytes = static_cast<size_t>(part.size()) * sizeof(float);
    if (!IsSumming()) {
      return std::as_writable_bytes(output_.subspan(part.begin, part.size())).subspan(processed());
    }
    const size_t rest = bytes - processed();
    return scratch_.subspan(partial_, std::min(scratch_.size(), rest) - partial_);
  }

  void Received(size_t bytes) override {
    if (!IsSumming()) return Process(bytes);
    const size_t there = partial_ + bytes;
    const size_t whole = there / sizeof(float);
    const LayoutRange part = Part(ReceiveIndex(receive_round()));
    const size_t at = static_cast<size_t>(part.begin) + processed() / sizeof(float);
    const std::span<const float> came(reinterpret_cast<const float*>(scratch_.data()), whole);
    Sum(came, input_.subspan(at, whole), output_.subspan(at, whole));
    partial_ = there % sizeof(float);
    std::memmove(scratch_.data(), scratch_.data() + whole * sizeof(float), partial_);
    Process(whole * sizeof(float));
  }

 protected:
  std::span<const std::byte> SendPart(int round) override {
    const LayoutRange part = Part(SendIndex(round));
    const std::span<const float> from = round == 0 ? input_ : std::span<const float>(output_);
    return std::as_bytes(from.subspan(part.begin, part.size()));
  }
  size_t PartBytes(int part) const override { return static_cast<size_t>(Part(part).size()) * sizeof(float); }

 private:
  bool IsSumming() const { return receive_round() < rounds() / 2; }
  LayoutRange Part(int index) const { return PartOf(input_.size(), index, count_); }

  const int count_;
  const std::span<const float> input_;
  const std::span<float> output_;
  const std::span<std::byte> scratch_;
  size_t partial_ = 0;  // bytes of a float that has not come whole
};

// Each rank's block goes round once.
class RingGatherFlow final : public RingFlow {
 public:
  RingGatherFlow(int index, int count, std::span<std::byte> blocks, int64_t most_ahead)
      : RingFlow(index, count, count - 1, most_ahead), blocks_(blocks), block_bytes_(blocks.size() / count) {
    SkipEmpty();
  }
  std::span<std::byte> Room() override {
    if (receive_round() == rounds()) return {};
    return blocks_.subspan(ReceiveIndex(receive_round()) * block_bytes_ + processed(),
                           block_bytes_ - processed());
  }
  void Received(size_t bytes) override { Process(bytes); }

 protected:
  std::span<const std::byte> SendPart(int round) override {
    return blocks_.subspan(SendIndex(round) * block_bytes_, block_bytes_);
  }
  size_t PartBytes(int) const override { return block_bytes_; }

 private:
  const std::span<std::byte> blocks_;
  const size_t block_bytes_;
};

}  // namespace

PeerGroup::PeerGroup(PeerLinks& links, std::vector<int> ranks) : links_(links), ranks_(std::move(ranks)) {
  const auto own = std::find(ranks_.begin(), ranks_.end(), links.identity().rank);
  MUSTER_CHECK(own != ranks_.end());
  index_ = static_cast<int>(own - ranks_.begin());
}

std::set<int> PeerGroup::RingPartners() const {
  std::set<int> partners = {ranks_[Modulo(index_ - 1, size())], ranks_[Modulo(index_ + 1, size())]};
  partners.erase(ranks_[index_]);
  return partners;
}

// Recursive doubling among the largest power of two of ranks; each of the others is behind one of them.
std::set<int> PeerGroup::Partners() const {
  std::set<int> partners = RingPartners();
  const int doubled = static_cast<int>(std::bit_floor(static_cast<unsigned>(size())));
  if (index_ >= doubled) {
    partners.insert(ranks_[index_ - doubled]);
    return partners;
  }
  if (index_ + doubled < size()) partners.insert(ranks_[index_ + doubled]);
  for (int distance = 1; distance < doubled; distance *= 2) partners.insert(ranks_[index_ ^ distance]);
  return partners;
}

absl::Status PeerGroup::Swap(int with, std::span<const std::byte> send, std::span<std::byte> receive) {
  SwapFlow flow(send, receive);
  return links_.Drive(flow, ranks_[with], ranks_[with]);
}

// Both of a pair compute the sum of the same two numbers, so that all end with the same bits.
absl::Status PeerGroup::Double(std::span<float> values) {
  if (scratch_.size() < values.size()) scratch_.resize(values.size());
  const std::span<float> theirs = std::span(scratch_).first(values.size());
  const int doubled = static_cast<int>(std::bit_floor(static_cast<unsigned>(size())));
  if (index_ >= doubled) {
    MUSTER_RETURN_IF_ERROR(Swap(index_ - doubled, std::as_bytes(values), {}));
    return Swap(index_ - doubled, {}, std::as_writable_bytes(values));
  }
  const bool has_follower = index_ + doubled < size();
  if (has_follower) {
    MUSTER_RETURN_IF_ERROR(Swap(index_ + doubled, {}, std::as_writable_bytes(theirs)));
    Sum(values, theirs, values);
  }
  for (int distance = 1; distance < doubled; distance *= 2) {
    MUSTER_RETURN_IF_ERROR(Swap(index_ ^ distance, std::as_bytes(values), std::as_writable_bytes(theirs)));
    Sum(values, theirs, values);
  }
  return has_follower ? Swap(index_ + doubled, std::as_bytes(values), {}) : absl::OkStatus();
}

int64_t PeerGroup::MostAhead() const {
  const RoundTripTimes times = links_.RoundTrip(ranks_[Modulo(index_ + 1, size())]);
  return times.least < kSameMachine && times.mean < kQueued ? kMostAhead : INT64_MAX / 2;
}

absl::Status PeerGroup::AllReduce(std::span<const float> input, std::span<float> output) {
  if (size() == 1 || input.size_bytes() <= kDoublingBytes) {
    if (input.data() != output.data()) std::copy(input.begin(), input.end(), output.begin());
    return size() == 1 ? absl::OkStatus() : Double(output);
  }
  if (scratch_.size() < kScratchFloats) scratch_.resize(kScratchFloats);
  RingSumFlow flow(index_, size(), input, output, std::span(scratch_).first(kScratchFloats), MostAhead());
  return links_.Drive(flow, ranks_[Modulo(index_ + 1, size())], ranks_[Modulo(index_ - 1, size())]);
}

absl::Status PeerGroup::Broadcast(std::span<std::byte> data, int root) {
  if (size() == 1) return absl::OkStatus();
  const int next = Modulo(index_ + 1, size());
  ChainFlow flow(data, index_ == root, next == root);
  return links_.Drive(flow, ranks_[next], ranks_[Modulo(index_ - 1, size())]);
}

absl::Status PeerGroup::AllGather(std::span<const std::byte> input, std::span<std::byte> output) {
  MUSTER_CHECK(output.size() == input.size() * ranks_.size());
  std::copy(input.begin(), input.end(), output.begin() + static_cast<ptrdiff_t>(index_ * input.size()));
  if (size() == 1) return absl::OkStatus();
  RingGatherFlow flow(index_, size(), output, MostAhead());
  return links_.Drive(flow, ranks_[Modulo(index_ + 1, size())], ranks_[Modulo(index_ - 1, size())]);
}

}  // namespace muster
