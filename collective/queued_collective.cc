#include "collective/queued_collective.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

namespace muster {
namespace {

class QueuedCollective final : public Collective {
 public:
  explicit QueuedCollective(std::unique_ptr<CollectiveBackend> backend)
      : backend_(std::move(backend)), traffic_(backend_->traffic()) {}

  ~QueuedCollective() override {
    thread_.request_stop();
    Abort(Cancelled("the group was given up"));
  }

  int rank() const override { return backend_->rank(); }
  int size() const override { return backend_->size(); }
  Traffic traffic() const override {
    const std::lock_guard lock(mutex_);
    return traffic_;
  }

  Ticket Start(const Operation& operation) override {
    const std::lock_guard lock(mutex_);
    queue_.push_back(operation);
    if (!thread_.joinable()) {
      thread_ = std::jthread([this](const std::stop_token& stop) { Work(stop); });
    }
    is_to_do_.notify_one();
    return done_ + (is_busy_ ? 1 : 0) + queue_.size();
  }

  absl::Status Wait(Ticket ticket) override {
    std::unique_lock lock(mutex_);
    AwaitOrDo(lock, ticket);
    return done_ >= ticket ? absl::OkStatus() : status_;
  }

  absl::Status Run(const Operation& operation) override {
    std::unique_lock lock(mutex_);
    const Ticket before = done_ + (is_busy_ ? 1 : 0) + queue_.size();
    AwaitOrDo(lock, before);
    if (status_.ok()) Do(lock, operation);
    return done_ > before ? absl::OkStatus() : status_;
  }

  void Abort(const absl::Status& why) override {
    {
      const std::lock_guard lock(mutex_);
      if (status_.ok()) status_ = why;
      is_done_.notify_all();
      is_to_do_.notify_all();
    }
    backend_->Stop();
  }

 private:
  void AwaitOrDo(std::unique_lock<std::mutex>& lock, Ticket ticket) {
    while (done_ < ticket && (status_.ok() || is_busy_)) {
      if (is_busy_ || queue_.empty()) {
        is_done_.wait(lock);
      } else {
        DoNext(lock);
      }
    }
  }

  void DoNext(std::unique_lock<std::mutex>& lock) {
    const Operation operation = queue_.front();
    queue_.pop_front();
    Do(lock, operation);
  }

  void Do(std::unique_lock<std::mutex>& lock, const Operation& operation) {
    is_busy_ = true;
    lock.unlock();
    const absl::Status status = backend_->Perform(operation);
    const Traffic traffic = backend_->traffic();
    lock.lock();
    is_busy_ = false;
    traffic_ = traffic;
    if (status.ok()) {
      ++done_;
    } else if (status_.ok()) {
      status_ = status;
    }
    is_done_.notify_all();
    if (!queue_.empty()) is_to_do_.notify_one();  // a caller may have done only what it waits for
  }

  void Work(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      if (!status_.ok()) return;
      if (is_busy_ || queue_.empty()) {
        is_to_do_.wait(lock);
      } else {
        DoNext(lock);
      }
    }
  }

  const std::unique_ptr<CollectiveBackend> backend_;
  mutable std::mutex mutex_;  // guards the following
  std::condition_variable is_to_do_, is_done_;
  std::deque<Operation> queue_;
  bool is_busy_ = false;  // somebody is in Perform
  Ticket done_ = 0;       // without what failed
  absl::Status status_;
  Traffic traffic_;
  std::jthread thread_;  // the last member: it uses the others
};

class SingleRank final : public CollectiveBackend {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  absl::Status Perform(const Operation& operation) override {
    const bool is_copy =
        operation.kind == Operation::Kind::kAllReduce || operation.kind == Operation::Kind::kAllGather;
    if (is_copy && operation.input.data() != operation.output.data()) {
      std::copy(operation.input.begin(), operation.input.end(), operation.output.begin());
    }
    return absl::OkStatus();
  }
  void Stop() override {}
};

}  // namespace

Operation AllReduce(std::span<const float> input, std::span<float> output) {
  MUSTER_CHECK(input.size() == output.size());
  return {.kind = Operation::Kind::kAllReduce,
          .input = std::as_bytes(input),
          .output = std::as_writable_bytes(output)};
}

Operation Broadcast(std::span<std::byte> data, int root) {
  return {.kind = Operation::Kind::kBroadcast, .input = data, .output = data, .root = root};
}

Operation AllGather(std::span<const std::byte> input, std::span<std::byte> output) {
  return {.kind = Operation::Kind::kAllGather, .input = input, .output = output};
}

Operation Barrier() { return {}; }

std::unique_ptr<Collective> MakeQueued(std::unique_ptr<CollectiveBackend> backend) {
  return std::make_unique<QueuedCollective>(std::move(backend));
}

std::unique_ptr<Collective> MakeSingleRank() { return MakeQueued(std::make_unique<SingleRank>()); }

}  // namespace muster
