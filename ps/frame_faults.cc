#include "ps/frame_faults.h"

#include <algorithm>
#include <vector>

namespace muster {
namespace {

// What a sender lends until its answer has come may be delivered later than that.
grpc::ByteBuffer Copy(const grpc::ByteBuffer& frame) {
  std::vector<grpc::Slice> slices, copies;
  if (!frame.Dump(&slices).ok()) return {};
  for (const grpc::Slice& slice : slices) copies.emplace_back(slice.begin(), slice.size());
  return {copies.data(), copies.size()};
}

}  // namespace

FrameFaults::FrameFaults(const FrameFaultOptions& options, uint64_t stream,
                         std::function<void(grpc::ByteBuffer)> deliver)
    : options_(options),
      deliver_(std::move(deliver)),
      random_(options.seed, stream),
      thread_([this](const std::stop_token& stop) { Run(stop); }) {}

FrameFaults::~FrameFaults() { thread_.request_stop(); }

void FrameFaults::Pass(const grpc::ByteBuffer& frame) {
  const std::lock_guard lock(mutex_);
  if (random_.NextDouble() < options_.lost) return;
  TimePoint due = Now();
  if (random_.NextDouble() < options_.late) {
    due += std::chrono::duration_cast<Duration>(options_.latest * random_.NextDouble());
  }
  if (!frames_.empty()) due = std::max(due, frames_.back().first);
  const int copies = random_.NextDouble() < options_.doubled ? 2 : 1;
  for (int i = 0; i < copies; ++i) frames_.emplace_back(due, Copy(frame));
  changed_.notify_all();
}

void FrameFaults::Run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    if (frames_.empty()) {
      changed_.wait(lock, stop, [this] { return !frames_.empty(); });
      continue;
    }
    if (Now() < frames_.front().first) {
      changed_.wait_until(lock, stop, frames_.front().first, [] { return false; });
      continue;
    }
    grpc::ByteBuffer frame = std::move(frames_.front().second);
    frames_.pop_front();
    lock.unlock();
    deliver_(std::move(frame));
    lock.lock();
  }
}

}  // namespace muster
