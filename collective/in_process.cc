#include "collective/in_process.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "collective/queued_collective.h"
#include "kernels/elementwise.h"

namespace muster {
namespace {

// What the ranks bring to an operation; the last one does it for all.
class Meeting {
 public:
  Meeting(int size, Duration timeout) : timeout_(timeout), brought_(size) {}

  absl::Status Perform(int rank, const Operation& operation) {
    std::unique_lock lock(mutex_);
    if (!gone_.empty()) return Gone();
    const uint64_t round = round_;
    brought_[rank] = &operation;
    if (std::count(brought_.begin(), brought_.end(), nullptr) == 0) {
      status_ = DoForAll();
      std::fill(brought_.begin(), brought_.end(), nullptr);
      ++round_;
      has_changed_.notify_all();
      return status_;
    }
    const bool in_time =
        has_changed_.wait_for(lock, timeout_, [&] { return round_ > round || !gone_.empty(); });
    if (round_ > round) return status_;
    brought_[rank] = nullptr;
    if (!gone_.empty()) return Gone();
    MUSTER_CHECK(!in_time);
    const auto missing = std::find(brought_.begin(), brought_.end(), nullptr) - brought_.begin();
    return DeadlineExceeded("rank %d has not done its part", missing == rank ? missing + 1 : missing);
  }

  void Leave(int rank) {
    const std::lock_guard lock(mutex_);
    gone_.push_back(rank);
    has_changed_.notify_all();
  }

 private:
  absl::Status Gone() const { return Unavailable("rank %d has gone", gone_.front()); }

  absl::Status DoForAll() {
    const Operation& first = *brought_.front();
    for (const Operation* other : brought_) {
      if (other->kind != first.kind || other->input.size() != first.input.size() ||
          other->root != first.root) {
        return Internal("the ranks do not do the same");
      }
    }
    switch (first.kind) {
      case Operation::Kind::kAllReduce: {
        const auto floats = [](std::span<const std::byte> bytes) {
          return std::span(reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float));
        };
        const std::span<const float> input = floats(first.input);
        std::vector<float> sum(input.begin(), input.end());
        for (size_t i = 1; i < brought_.size(); ++i) Sum(sum, floats(brought_[i]->input), sum);
        for (const Operation* each : brought_)
          std::copy(sum.begin(), sum.end(), reinterpret_cast<float*>(each->output.data()));
        break;
      }
      case Operation::Kind::kBroadcast:
        for (const Operation* each : brought_) {
          const std::span<const std::byte> data = brought_[first.root]->input;
          if (each->output.data() != data.data()) std::copy(data.begin(), data.end(), each->output.begin());
        }
        break;
      case Operation::Kind::kAllGather:
        for (const Operation* each : brought_) {
          auto at = each->output.begin();
          for (const Operation* other : brought_)
            at = std::copy(other->input.begin(), other->input.end(), at);
        }
        break;
      case Operation::Kind::kBarrier:
        break;
    }
    return absl::OkStatus();
  }

  const Duration timeout_;
  std::mutex mutex_;  // guards the following
  std::condition_variable has_changed_;
  std::vector<const Operation*> brought_;  // by rank
  uint64_t round_ = 0;
  absl::Status status_;  // of the last round
  std::vector<int> gone_;
};

class InProcess final : public CollectiveBackend {
 public:
  InProcess(std::shared_ptr<Meeting> meeting, int rank, int size)
      : meeting_(std::move(meeting)), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  absl::Status Perform(const Operation& operation) override { return meeting_->Perform(rank_, operation); }
  void Stop() override { meeting_->Leave(rank_); }

 private:
  const std::shared_ptr<Meeting> meeting_;  // of all ranks, as long as there is one
  const int rank_, size_;
};

}  // namespace

std::vector<std::unique_ptr<Collective>> MakeInProcess(int size, Duration timeout) {
  const auto meeting = std::make_shared<Meeting>(size, timeout);
  std::vector<std::unique_ptr<Collective>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(MakeQueued(std::make_unique<InProcess>(meeting, rank, size)));
  }
  return ranks;
}

}  // namespace muster
