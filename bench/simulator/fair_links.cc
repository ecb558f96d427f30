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
  kinds_[kPush] = {.direction = Direction::kPush, .bytes = options.push_bytes};
  kinds_[kPull] = {.direction = Direction::kPull, .bytes = options.pull_bytes};
  kinds_[kLargePull] = {
      .direction = Direction::kPull, .bytes = options.pull_bytes, .share = options.large_share};
  const int with_more = options.servers % options.workers;
  classes_[0] = {.share = OwnShare(options, options.workers - 1), .hosts = options.workers - with_more};
  classes_[1] = {.share = OwnShare(options, 0), .hosts = with_more};
}

void FairLinks::Begin(Direction direction, int worker, double now, Share share) {
  MUSTER_CHECK(OwnShare(options_, worker) < 1);
  MUSTER_CHECK(direction == Direction::kPull || share == Share::kEven);
  PassUntil(now);
  const KindIndex index = direction == Direction::kPush ? kPush : share == Share::kLarge ? kLargePull : kPull;
  Kind& kind = kinds_[index];
  kind.transfers.push_back({worker, kind.passed + kind.bytes});
  Count(index, worker, 1);
  UpdateRates();
}

std::vector<FairLinks::Ended> FairLinks::TakeEnded() {
  const double end = NextEnd();
  MUSTER_CHECK(end < kInfinity);
  PassUntil(end);
  std::vector<Ended> ended;
  for (int index = 0; index < kKinds; ++index) {
    Kind& kind = kinds_[index];
    if (kind.next_end > end) continue;
    // What rounding made of it must neither keep back a transfer that ends now, nor one that began with it.
    kind.passed = kind.transfers.front().end_bytes;
    while (!kind.transfers.empty() && kind.transfers.front().end_bytes <= kind.passed) {
      ended.push_back({kind.direction, kind.transfers.front().worker});
      Count(index, kind.transfers.front().worker, -1);
      kind.transfers.pop_front();
    }
    if (kind.transfers.empty()) kind.passed = 0;  // small numbers have small rounding errors
  }
  UpdateRates();
  return ended;
}

void FairLinks::Count(int kind, int worker, int change) {
  classes_[worker < options_.servers % options_.workers ? 1 : 0].busy[kind] += change;
}

void FairLinks::PassUntil(double now) {
  MUSTER_CHECK(now >= now_ && now <= NextEnd());
  if (now == now_) return;  // a rate may be infinite
  for (Kind& kind : kinds_) {
    if (!kind.transfers.empty()) kind.passed += kind.rate * (now - now_);
  }
  now_ = now;
}

void FairLinks::ListSeparateLoads() {
  loads_.clear();
  for (int index = 0; index < kKinds; ++index) {
    if (kinds_[index].transfers.empty()) continue;
    Load& load = loads_.emplace_back();
    load.parts[index] = 1;
    load.capacity = options_.worker_link_bytes_per_second;
  }
  const double servers = options_.servers;
  const double capacity = options_.server_link_bytes_per_second;
  loads_.push_back({.parts = {CountOf(kPush) / servers, 0, 0}, .capacity = capacity});
  loads_.push_back(
      {.parts = {0, CountOf(kPull) / servers, CountOf(kLargePull) / servers}, .capacity = capacity});
}

void FairLinks::ListSharedLoads() {
  loads_.clear();
  for (const HostClass& host : classes_) {
    const double own = host.share;
    const double others = 1 - own;
    const Parts pushes = {own * CountOf(kPush), 0, 0};
    const Parts pulls = {0, own * CountOf(kPull), own * CountOf(kLargePull)};
    const auto add = [&](Parts parts) {
      loads_.push_back({.parts = parts, .capacity = options_.worker_link_bytes_per_second});
    };
    const auto add_with = [&](Parts parts, int kind, double part) {
      parts[kind] += part;
      add(parts);
    };
    if (host.busy[kPush] > 0) {
      add_with(pushes, kPush, -own);
      add_with(pulls, kPush, others);
    }
    for (const int kind : {kPull, kLargePull}) {
      if (host.busy[kind] == 0) continue;
      add_with(pushes, kind, others);
      add_with(pulls, kind, -own);
    }
    if (host.hosts > host.busy[kPush] + host.busy[kPull] + host.busy[kLargePull]) {
      add(pushes);
      add(pulls);
    }
  }
}

// Max-min: all grow together, each as fast as its share, until a link is full; then those that have no part
// in that link go on until another one is.
void FairLinks::ShareLinks() {
  std::array<bool, kKinds> grows;
  grows.fill(true);
  // By how much each could have grown, for a share of 1, when this link is full.
  const auto level_of = [&](const Load& load) {
    double left = load.capacity;
    double growth = 0;
    for (int kind = 0; kind < kKinds; ++kind) {
      if (load.parts[kind] <= 0) continue;
      (grows[kind] ? growth : left) +=
          load.parts[kind] * (grows[kind] ? kinds_[kind].share : -kinds_[kind].rate);
    }
    return growth > 0 ? std::max(0.0, left) / growth : kInfinity;
  };
  for (Kind& kind : kinds_) kind.rate = kInfinity;
  for (;;) {
    const Load* full = nullptr;
    double level = kInfinity;
    for (const Load& load : loads_) {
      if (level_of(load) >= level) continue;
      level = level_of(load);
      full = &load;
    }
    if (full == nullptr) return;
    for (int kind = 0; kind < kKinds; ++kind) {
      if (!grows[kind] || full->parts[kind] <= 0) continue;
      kinds_[kind].rate = kinds_[kind].share * level;
      grows[kind] = false;
    }
  }
}

void FairLinks::UpdateRates() {
  if (options_.servers_on_workers) {
    ListSharedLoads();
  } else {
    ListSeparateLoads();
  }
  ShareLinks();
  for (Kind& kind : kinds_) {
    kind.next_end = kInfinity;
    if (!kind.transfers.empty()) {
      const double left = std::max(0.0, kind.transfers.front().end_bytes - kind.passed);
      kind.next_end = now_ + left / kind.rate;
    }
  }
}

}  // namespace muster::simulator
