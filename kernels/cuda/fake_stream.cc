#include "kernels/cuda/fake_stream.h"

#include <algorithm>
#include <set>
#include <utility>

namespace muster::cuda {
namespace {

// All streams. Never destroyed, as streams of threads that nobody waits for may outlive everything.
struct Streams {
  std::mutex mutex;
  std::set<FakeStream*> all;
};

Streams& AllStreams() {
  static Streams& streams = *new Streams;
  return streams;
}

}  // namespace

void Milestone::Reach() {
  const std::lock_guard lock(mutex_);
  reached_ = Now();
  has_changed_.notify_all();
}

void Milestone::Wait() {
  std::unique_lock lock(mutex_);
  has_changed_.wait(lock, [&] { return reached_.has_value(); });
}

std::optional<TimePoint> Milestone::reached() {
  const std::lock_guard lock(mutex_);
  return reached_;
}

bool CapturedGraph::is_joined() const {
  std::vector<size_t> before(lanes_.size());  // the end, of each lane
  std::vector<CapturedPlace> open = {{0, lanes_.front().size()}};
  while (!open.empty()) {
    const auto [lane, count] = open.back();
    open.pop_back();
    for (; before[lane] < count; ++before[lane]) {
      const Node& node = lanes_[lane][before[lane]];
      if (node.work == nullptr) open.push_back(node.place);
    }
  }
  for (size_t i = 0; i < lanes_.size(); ++i) {
    const auto behind = lanes_[i].begin() + static_cast<ptrdiff_t>(before[i]);
    if (std::any_of(behind, lanes_[i].end(), [](const Node& node) { return node.work != nullptr; })) {
      return false;
    }
  }
  return true;
}

// One run of a graph.
class CapturedGraph::UnderWay {
 public:
  explicit UnderWay(const std::vector<Lane>& lanes) : lanes_(lanes), done_(lanes.size()) {}

  void RunLane(size_t lane) {
    for (const Node& node : lanes_[lane]) {
      if (node.work != nullptr) {
        node.work();
      } else {
        Await(node.place);
      }
      const std::lock_guard lock(mutex_);
      ++done_[lane];
      has_changed_.notify_all();
    }
  }

 private:
  void Await(CapturedPlace place) {
    std::unique_lock lock(mutex_);
    has_changed_.wait(lock, [&] { return done_[place.lane] >= place.count; });
  }

  const std::vector<Lane>& lanes_;
  std::mutex mutex_;
  std::condition_variable has_changed_;
  std::vector<size_t> done_;  // nodes, by lane
};

void CapturedGraph::Run() const {
  UnderWay run(lanes_);
  std::vector<std::jthread> others;
  for (size_t lane = 1; lane < lanes_.size(); ++lane)
    others.emplace_back([&run, lane] { run.RunLane(lane); });
  run.RunLane(0);
}

void Capture::Add(const FakeStream* stream, std::function<void()> work) {
  graph_.lanes_[lanes_.at(stream)].push_back({.work = std::move(work)});
}

CapturedPlace Capture::PlaceOf(const FakeStream* stream) const {
  const size_t lane = lanes_.at(stream);
  return {lane, graph_.lanes_[lane].size()};
}

void Capture::Wait(FakeStream* stream, CapturedPlace place) {
  const size_t lane = LaneOf(stream);
  if (lane != place.lane) graph_.lanes_[lane].push_back({.place = place});
}

size_t Capture::LaneOf(FakeStream* stream) {
  const auto [found, is_new] = lanes_.try_emplace(stream, streams_.size());
  if (is_new) {
    streams_.push_back(stream);
    graph_.lanes_.emplace_back();
  }
  return found->second;
}

FakeStream::FakeStream(int device)
    : device_(device), thread_([this](const std::stop_token& stop) { Run(stop); }) {
  const std::lock_guard lock(AllStreams().mutex);
  AllStreams().all.insert(this);
}

FakeStream::~FakeStream() {
  const std::lock_guard lock(AllStreams().mutex);
  AllStreams().all.erase(this);
}

void FakeStream::Enqueue(std::function<void()> work) {
  if (capture != nullptr) return capture->Add(this, std::move(work));
  Push({std::move(work), /*is_mark=*/false});
}

bool FakeStream::is_idle() {
  const std::lock_guard lock(mutex_);
  return unfinished_ == 0;
}

std::shared_ptr<Milestone> FakeStream::Mark() {
  auto milestone = std::make_shared<Milestone>();
  Push({[milestone] { milestone->Reach(); }, /*is_mark=*/true});
  return milestone;
}

void FakeStream::Push(Item item) {
  const std::lock_guard lock(mutex_);
  if (!item.is_mark) ++unfinished_;
  queue_.push_back(std::move(item));
  has_work_.notify_one();
}

void FakeStream::Run(const std::stop_token& stop) {
  std::unique_lock lock(mutex_);
  while (true) {
    has_work_.wait(lock, stop, [&] { return !queue_.empty(); });
    if (queue_.empty()) return;
    const Item item = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    item.work();
    lock.lock();
    if (!item.is_mark) --unfinished_;
  }
}

void WaitForDevice(int device) {
  std::vector<std::shared_ptr<Milestone>> milestones;
  {
    const std::lock_guard lock(AllStreams().mutex);
    for (FakeStream* const stream : AllStreams().all) {
      if (stream->device() == device) milestones.push_back(stream->Mark());
    }
  }
  for (const auto& milestone : milestones) milestone->Wait();
}

}  // namespace muster::cuda
