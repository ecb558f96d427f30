#include "collective/native.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <numeric>

#include "base/boot_id.h"
#include "base/logging.h"
#include "base/shared_memory.h"
#include "collective/local_group.h"
#include "collective/peer_group.h"
#include "collective/queued_collective.h"

namespace muster {
namespace {

constexpr Duration kLocalMeetingTimeout = std::chrono::seconds(3);  // all of them are there already

// What ranks of one host have in common: memory is shared, and its sockets are found, between processes of
// one user and one network namespace. Each rank also brings the secret of its meeting place, of which the
// first one's is used.
struct HostCard {
  std::array<char, 64> host{};
  std::array<char, 64> secret{};
};

std::string HostName() {
  struct stat network {};
  if (::stat("/proc/self/ns/net", &network) != 0 || BootId().empty()) return "";
  return absl::StrFormat("%s %d %d", BootId(), network.st_ino, ::geteuid());
}

class NativeBackend final : public CollectiveBackend {
 public:
  NativeBackend(const NativeOptions& options, PeerListener& listener, Interrupt& interrupt)
      : options_(options),
        interrupt_(interrupt),
        links_(options.identity, listener, options.operation_timeout, interrupt) {}

  absl::Status Meet();

  int rank() const override { return options_.identity.rank; }
  int size() const override { return static_cast<int>(options_.identity.members.size()); }
  Traffic traffic() const override;
  absl::Status Perform(const Operation& operation) override;
  void Stop() override { interrupt_.Set(); }

 private:
  bool is_one_host() const { return local_ != nullptr && local_->size() == size(); }
  absl::Status AllReduce(std::span<const float> input, std::span<float> output);
  absl::Status ShareMemory(const std::vector<int>& ranks, const std::string& secret, LocalMeetingPlace place);

  const NativeOptions options_;
  Interrupt& interrupt_;
  std::unique_ptr<LocalGroup> local_;     // of this host, if there are several who share memory
  PeerLinks links_;                       // which count in that how they get on
  std::unique_ptr<PeerGroup> everybody_;  // round a ring
  std::unique_ptr<PeerGroup> hosts_;      // the first rank of each host; null: this is none
};

absl::Status NativeBackend::Meet() {
  std::vector<int> all(size());
  std::iota(all.begin(), all.end(), 0);
  everybody_ = std::make_unique<PeerGroup>(links_, all);
  MUSTER_RETURN_IF_ERROR(links_.Connect(everybody_->RingPartners(), Now() + options_.connect_timeout));

  // A rank that does not share memory is a host to itself.
  std::string host = absl::StrFormat("rank %d", rank());
  LocalMeetingPlace place;
  if (options_.shares_memory && !HostName().empty() && SharedMemory::Create(1).ok()) {
    if (auto made = MakeLocalMeetingPlace(); made.ok()) {
      place = *std::move(made);
      host = HostName();
    }
  }
  HostCard own;
  MUSTER_CHECK(host.size() < own.host.size() && place.secret.size() < own.secret.size());
  host.copy(own.host.data(), host.size());
  place.secret.copy(own.secret.data(), place.secret.size());
  std::vector<HostCard> cards(size());
  MUSTER_RETURN_IF_ERROR(
      everybody_->AllGather(std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(cards))));
  std::map<std::array<char, 64>, std::vector<int>> ranks_of;
  for (int i = 0; i < size(); ++i) ranks_of[cards[i].host].push_back(i);
  const std::vector<int>& beside = ranks_of[own.host];
  absl::Status shared = absl::OkStatus();
  if (beside.size() > 1) {
    shared = ShareMemory(beside, cards[beside.front()].secret.data(), std::move(place));
    if (absl::IsCancelled(shared)) return shared;
  }
  const uint8_t shares = shared.ok() ? 1 : 0;
  std::vector<uint8_t> all_share(size());
  MUSTER_RETURN_IF_ERROR(everybody_->AllGather(std::as_bytes(std::span(&shares, 1)),
                                               std::as_writable_bytes(std::span(all_share))));
  // Had the others gone meanwhile, it would be that.
  if (!shared.ok()) spdlog::warn("ranks of this host use TCP: {}", std::string(shared.message()));
  // A host where one of them cannot is one where none does.
  std::vector<int> firsts;
  for (int i = 0; i < size(); ++i) {
    const std::vector<int>& ranks = ranks_of[cards[i].host];
    const bool all = std::all_of(ranks.begin(), ranks.end(), [&](int rank) { return all_share[rank] != 0; });
    if (!all || ranks.front() == i) firsts.push_back(i);
    if (all || i != rank()) continue;
    local_ = nullptr;
    if (options_.memory_has_failed != nullptr) *options_.memory_has_failed = true;
  }
  if (std::find(firsts.begin(), firsts.end(), rank()) == firsts.end()) return absl::OkStatus();
  hosts_ = std::make_unique<PeerGroup>(links_, firsts);
  if (local_ != nullptr) links_.CountProgress(local_->progress());
  // All are as far as this, however long memory took.
  return links_.Connect(hosts_->Partners(), Now() + options_.connect_timeout);
}

absl::Status NativeBackend::ShareMemory(const std::vector<int>& ranks, const std::string& secret,
                                        LocalMeetingPlace place) {
  LocalGroupOptions local{.timeout = options_.operation_timeout};
  for (const int rank : ranks) local.names.push_back(Describe(options_.identity.members[rank]));
  local.index = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin());
  const TimePoint deadline = Now() + kLocalMeetingTimeout;
  auto group = local.index == 0 ? LocalGroup::Lead(std::move(local), std::move(place), deadline, interrupt_)
                                : LocalGroup::Follow(std::move(local), secret, deadline, interrupt_);
  MUSTER_RETURN_IF_ERROR(group.status());
  local_ = *std::move(group);
  return absl::OkStatus();
}

Traffic NativeBackend::traffic() const {
  const Traffic through_memory = local_ != nullptr ? local_->traffic() : Traffic{};
  return {.sent_bytes = links_.traffic().sent_bytes + through_memory.sent_bytes,
          .received_bytes = links_.traffic().received_bytes + through_memory.received_bytes};
}

absl::Status NativeBackend::Perform(const Operation& operation) {
  const auto& [kind, input, output, root] = operation;
  switch (kind) {
    case Operation::Kind::kAllReduce:
      return AllReduce({reinterpret_cast<const float*>(input.data()), input.size() / sizeof(float)},
                       {reinterpret_cast<float*>(output.data()), output.size() / sizeof(float)});
    case Operation::Kind::kBroadcast:
      return is_one_host() ? local_->Broadcast(output, root) : everybody_->Broadcast(output, root);
    case Operation::Kind::kAllGather:
      return is_one_host() ? local_->AllGather(input, output) : everybody_->AllGather(input, output);
    case Operation::Kind::kBarrier: {
      float nothing[1] = {};
      return AllReduce(nothing, nothing);
    }
  }
  return Internal("an operation of kind %d", static_cast<int>(kind));
}

absl::Status NativeBackend::AllReduce(std::span<const float> input, std::span<float> output) {
  if (local_ == nullptr) return hosts_->AllReduce(input, output);
  MUSTER_RETURN_IF_ERROR(local_->AllReduce(input, output));
  if (is_one_host()) return absl::OkStatus();
  if (hosts_ != nullptr) MUSTER_RETURN_IF_ERROR(hosts_->AllReduce(output, output));
  return local_->Broadcast(std::as_writable_bytes(output), 0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Collective>> MakeNative(const NativeOptions& options, PeerListener& listener,
                                                       Interrupt& interrupt) {
  if (options.identity.members.size() == 1) return MakeSingleRank();
  auto backend = std::make_unique<NativeBackend>(options, listener, interrupt);
  MUSTER_RETURN_IF_ERROR(backend->Meet());
  return MakeQueued(std::move(backend));
}

}  // namespace muster
