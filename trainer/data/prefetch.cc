#include "trainer/data/prefetch.h"

#include <utility>

namespace muster {

Prefetcher::Prefetcher(const Dataset& dataset, const SampleOrder& order, BatchBuffer buffer, bool with_thread)
    : dataset_(dataset), order_(order) {
  if (with_thread) buffers_.push_back(buffer);
  buffers_.push_back(std::move(buffer));
  if (with_thread) thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
}

Batch Prefetcher::Take(SampleRange positions, SampleRange next) {
  if (!thread_.joinable()) return buffers_[0].Fill(dataset_, order_, positions);
  std::unique_lock lock(mutex_);
  // What the thread has not begun with, on a busy machine say, is done sooner here.
  wanted_.reset();
  changed_.wait(lock, [this] { return !filling_; });
  taken_ = 1 - taken_;
  const bool guessed = filled_ && filled_->position == positions.begin && filled_->size() == positions.size();
  const Batch batch = guessed ? *filled_ : buffers_[taken_].Fill(dataset_, order_, positions);
  filled_.reset();
  wanted_ = next;
  lock.unlock();
  changed_.notify_all();
  return batch;
}

void Prefetcher::Run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (changed_.wait(lock, stop, [this] { return wanted_.has_value(); })) {
    const SampleRange positions = *std::exchange(wanted_, std::nullopt);
    filling_ = true;
    lock.unlock();
    filled_ = buffers_[1 - taken_].Fill(dataset_, order_, positions);
    lock.lock();
    filling_ = false;
    changed_.notify_all();
  }
}

}  // namespace muster
