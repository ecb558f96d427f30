#include "bench/simulator/fair_links.h"

#include "base/status.h"

namespace muster::simulator {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

double OwnShare(const FairLinksOptions& options, int worker) {
  if (!options.servers_on_workers) return 0;
  const int own = options.servers / options.workers + (worker < options.servers % options.workers ? 1 : 0);
  return static_cast<double>(own) / options.servers;
}

FairLinks::FairLinks(const FairLinksOptions& options) : options_(options) {
  push_.bytes = options.push_bytes;
  pull_.bytes = options.pull_bytes;
  const int with_more = options.servers % options.workers;
  classes_[0] = {.share = OwnShare(options, options.workers - 1), .hosts = options.workers - with_more};
  classes_[1] = {.share = OwnShare(options, 0), .hosts = with_more};
}

void FairLinks::Begin(Direction direction, int worker, double now) {
  MUSTER_CHECK(OwnShare(options_, worker) < 1);
  PassUntil(now);
  Kind& kind = KindOf(direction);
  kind.transfers.push_back({worker, kind.passed + kind.bytes});
  Count(direction, worker, 1);
  UpdateRates();
}

std::vector<FairLinks::Ended> FairLinks::TakeEnded() {
  const double end = NextEnd();
  MUSTER_CHECK(end < kInfinity);
  PassUntil(end);
  std::vector<Ended> ended;
  for (const Direction direction : {Direction::kPush, Direction::kPull}) {
    Kind& kind = KindOf(direction);
    if (kind.next_end > end) continue;
    // What rounding made of it must neither keep back a transfer that ends now, nor one that began with it.
    kind.passed = kind.transfers.front().end_bytes;
    while (!kind.transfers.empty() && kind.transfers.front().end_bytes <= kind.passed) {
      ended.push_back({direction, kind.transfers.front().worker});
      Count(direction, kind.transfers.front().worker, -1);
      kind.transfers.pop_front();
    }
    if (kind.transfers.empty()) kind.passed = 0;  // small numbers have small rounding errors
  }
  UpdateRates();
  return ended;
}

void FairLinks::Count(Direction direction, int worker, int change) {
  HostClass& host = classes_[worker < options_.servers % options_.workers ? 1 : 0];
  (direction == Direction::kPush ? host.pushing : host.pulling) += change;
}

void FairLinks::PassUntil(double now) {
  MUSTER_CHECK(now >= now_ && now <= NextEnd());
  if (now == now_) return;  // a rate may be infinite
  for (Kind* kind : {&push_, &pull_}) {
    if (!kind->transfers.empty()) kind->passed += kind->rate * (now - now_);
  }
  now_ = now;
}

void FairLinks::ListSeparateLoads() {
  const auto pushes = static_cast<double>(push_.transfers.size());
  const auto pulls = static_cast<double>(pull_.transfers.size());
  const double worker_link = options_.worker_link_bytes_per_second;
  const double server_link = options_.server_link_bytes_per_second;
  loads_ = {{.push = pushes > 0 ? 1.0 : 0.0, .capacity = worker_link},
            {.pull = pulls > 0 ? 1.0 : 0.0, .capacity = worker_link},
            {.push = pushes / options_.servers, .capacity = server_link},
            {.pull = pulls / options_.servers, .capacity = server_link}};
}

void FairLinks::ListSharedLoads() {
  const auto pushes = static_cast<double>(push_.transfers.size());
  const auto pulls = static_cast<double>(pull_.transfers.size());
  loads_.clear();
  for (const HostClass& host : classes_) {
    const double own = host.share;
    const double others = 1 - own;
    const double capacity = options_.worker_link_bytes_per_second;
    if (host.pushing > 0) {
      loads_.push_back({.push = own * (pushes - 1), .capacity = capacity});
      loads_.push_back({.push = others, .pull = own * pulls, .capacity = capacity});
    }
    if (host.pulling > 0) {
      loads_.push_back({.push = own * pushes, .pull = others, .capacity = capacity});
      loads_.push_back({.pull = own * (pulls - 1), .capacity = capacity});
    }
    if (host.hosts > host.pushing + host.pulling) {
      loads_.push_back({.push = own * pushes, .capacity = capacity});
      loads_.push_back({.pull = own * pulls, .capacity = capacity});
    }
  }
}

// Max-min of the two: both grow together until a link is full; then the one that has no part in that link
// grows until another one is.
void FairLinks::UpdateRates() {
  if (options_.servers_on_workers) {
    ListSharedLoads();
  } else {
    ListSeparateLoads();
  }
  double both = kInfinity;
  bool push_grows = true;
  bool pull_grows = true;
  for (const Load& load : loads_) {
    if (load.push + load.pull == 0 || load.capacity / (load.push + load.pull) >= both) continue;
    both = load.capacity / (load.push + load.pull);
    push_grows = load.push == 0;
    pull_grows = load.pull == 0;
  }
  push_.rate = push_grows ? kInfinity : both;
  pull_.rate = pull_grows ? kInfinity : both;
  for (const Load& load : loads_) {
    if (push_grows && load.push > 0) {
      push_.rate = std::min(push_.rate, (load.capacity - load.pull * both) / load.push);
    }
    if (pull_grows && load.pull > 0) {
      pull_.rate = std::min(pull_.rate, (load.capacity - load.push * both) / load.pull);
    }
  }
  for (Kind* kind : {&push_, &pull_}) {
    kind->next_end = kInfinity;
    if (!kind->transfers.empty()) {
      const double left = std::max(0.0, kind->transfers.front().end_bytes - kind->passed);
      kind->next_end = now_ + left / kind->rate;
    }
  }
}

}  // namespace muster::simulator
