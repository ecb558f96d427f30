#include "ps/early_update.h"

#include <algorithm>

namespace muster {

void EarlyUpdate::Begin(uint64_t step, std::vector<int> ranks) {
  step_ = step;
  ranks_ = std::move(ranks);
  arriving_.clear();
  made_ = 0;
  is_given_up_ = false;
}

void EarlyUpdate::Add(const Push& push, int64_t begin, const FloatPayload& values) {
  if (is_given_up_ || !std::binary_search(ranks_.begin(), ranks_.end(), push.rank)) return;
  const auto [found, is_new] = arriving_.try_emplace(push.rank, Arriving{.push = push});
  Arriving& arriving = found->second;
  if (arriving.push.arrival != push.arrival) {
    if (made_ > 0) return GiveUp();
    arriving = {.push = push};
  }
  if (begin != arriving.floats) return GiveUp();
  const int64_t count = std::min(values.size_bytes() / int64_t{sizeof(float)}, size_ - begin);
  if (count <= 0) return;  // of rows
  arriving.pieces.emplace_back(begin, values.Part(0, count));
  arriving.floats += count;
}

std::optional<EarlyUpdate::Part> EarlyUpdate::Next() {
  if (is_given_up_ || arriving_.size() < ranks_.size() || recipients().empty()) return std::nullopt;
  int64_t end = size_;
  for (const auto& [rank, arriving] : arriving_) end = std::min(end, arriving.floats);
  if (end == made_) return std::nullopt;
  Part part{.range = {made_, end}};
  for (auto& [rank, arriving] : arriving_) {
    part.gradients.push_back(Take(arriving, part.range));
    part.samples += arriving.push.samples;
  }
  made_ = end;
  return part;
}

// Pieces are dropped when nothing of them is left: they keep what came in alive.
FloatPayload EarlyUpdate::Take(Arriving& arriving, LayoutRange range) const {
  std::vector<grpc::Slice> slices;
  for (const auto& [begin, values] : arriving.pieces) {
    const int64_t end = begin + values.size_bytes() / int64_t{sizeof(float)};
    const int64_t first = std::max(begin, range.begin), last = std::min(end, range.end);
    if (first >= last) continue;
    for (grpc::Slice& slice : values.Part(first - begin, last - first).slices()) {
      slices.push_back(std::move(slice));
    }
  }
  std::erase_if(arriving.pieces, [&](const auto& piece) {
    return piece.first + piece.second.size_bytes() / int64_t{sizeof(float)} <= range.end;
  });
  return FloatPayload(std::move(slices), 0);
}

bool EarlyUpdate::IsOf(std::span<const uint64_t> arrivals) const {
  const auto is_same = [](const auto& arriving, uint64_t arrival) {
    return arriving.second.push.arrival == arrival;
  };
  return !is_given_up_ &&
         std::equal(arriving_.begin(), arriving_.end(), arrivals.begin(), arrivals.end(), is_same);
}

void EarlyUpdate::GiveUp() {
  arriving_.clear();
  made_ = 0;
  is_given_up_ = true;
}

void EarlyUpdate::End() {
  for (auto& [rank, arriving] : arriving_) arriving.pieces.clear();
}

std::vector<EarlyUpdate::Recipient> EarlyUpdate::recipients() const {
  std::vector<Recipient> recipients;
  for (const auto& [rank, arriving] : arriving_) {
    if (arriving.push.recipient) recipients.push_back(*arriving.push.recipient);
  }
  return recipients;
}

int64_t EarlyUpdate::SentTo(const Recipient& recipient) const {
  const std::vector<Recipient> all = recipients();
  return std::find(all.begin(), all.end(), recipient) == all.end() ? 0 : made_;
}

}  // namespace muster
