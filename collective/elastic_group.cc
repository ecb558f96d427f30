#include "collective/elastic_group.h"

#include <algorithm>

#include "base/logging.h"
#include "collective/peer_links.h"

namespace muster {
namespace {

// Those who are to meet are there, and wait for each other.
constexpr Duration kMeetingTimeout = std::chrono::seconds(5);
// Their GPUs look at each other and at the network before.
constexpr Duration kGpuMeetingTimeout = std::chrono::minutes(1);

GroupMember MemberAt(const std::shared_ptr<const ClusterView>& view, TaskId task) {
  return {.task = task, .address = "", .where = [view, task] { return view->Address(task); }};
}

std::vector<GroupMember> MembersOf(const std::shared_ptr<const ClusterView>& view) {
  const ClusterSpec cluster = view->cluster();
  std::vector<GroupMember> members;
  for (int rank = 0; rank < cluster.rank_count(); ++rank) {
    members.push_back(MemberAt(view, TaskOfRank(cluster, rank)));
  }
  return members;
}

std::unique_ptr<RendezvousServer> MakeServer(const ElasticGroupOptions& options, PeerListener& listener) {
  if (options.all.rank != 0) return nullptr;
  RendezvousServer::Members members;
  if (options.view != nullptr) {
    members = [view = options.view, seen = std::optional<uint64_t>()]() mutable {
      const uint64_t version = view->version();
      const bool is_news = std::exchange(seen, version) != version;
      return is_news ? std::optional(MembersOf(view)) : std::nullopt;
    };
  }
  return std::make_unique<RendezvousServer>(options.all,
                                            RendezvousOptions{.min_ranks = options.min_ranks,
                                                              .first_ranks = options.first_ranks,
                                                              .connect_timeout = options.connect_timeout,
                                                              .return_timeout = options.operation_timeout},
                                            listener, std::move(members));
}

RendezvousClientOptions ClientOptions(const ElasticGroupOptions& options, const PeerListener& listener) {
  RendezvousClientOptions client{.all = options.all,
                                 .view = options.view,
                                 .incarnation = options.incarnation,
                                 .connect_timeout = options.connect_timeout,
                                 .return_timeout = options.operation_timeout};
  if (options.all.rank == 0) {
    GroupMember& own = client.all.members[0];
    own.address = listener.address();
    if (options.view != nullptr) {
      own.where = [view = options.view, bind_host = options.bind_host] {
        return ListeningAddress(view->Address(view->own()), bind_host);
      };
    }
  }
  return client;
}

ElasticGroupOptions WithWhereabouts(ElasticGroupOptions options) {
  if (options.view == nullptr) return options;
  for (GroupMember& member : options.all.members) {
    member.where = MemberAt(options.view, member.task).where;
  }
  return options;
}

// Whether it is worth while to try again with another group.
bool IsOver(const absl::Status& status) {
  return absl::IsCancelled(status) || absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace

ElasticGroup::ElasticGroup(ElasticGroupOptions options, std::unique_ptr<PeerListener> listener)
    : options_(WithWhereabouts(std::move(options))),
      listener_(std::move(listener)),
      server_(MakeServer(options_, *listener_)),
      client_(ClientOptions(options_, *listener_), listener_->tls()),
      gpus_(options_.gpus) {
  if (options_.view == nullptr) return;
  follower_.emplace(options_.view.get(), options_.bind_host, listener_->address(),
                    [this](const std::string& address) { return listener_->ListenAlso(address); });
}

// Rank 0's own client is not to be lost to the rendezvous, which would tell of it.
ElasticGroup::~ElasticGroup() { server_.reset(); }

absl::StatusOr<GroupPlace> ElasticGroup::Join(std::optional<ParametersVersion> parameters) {
  while (true) {
    before_ = traffic();
    group_ = nullptr;
    is_by_gpus_ = false;
    interrupt_ = std::make_shared<Interrupt>();
    MUSTER_ASSIGN_OR_RETURN(const RankOrders orders,
                            client_.Join(parameters, std::exchange(departure_, {}), interrupt_));
    if (orders.concluded) return GroupPlace{.concluded = orders.concluded};
    ranks_ = orders.group.ranks;
    if (options_.view == nullptr && ranks_.back() >= static_cast<int>(options_.all.members.size())) {
      return FailedPrecondition(
          "rank %d has joined the job since this task began, which cannot know where it is: give all tasks "
          "--cluster_file",
          ranks_.back());
    }
    const auto position = [&](int rank) {
      return static_cast<int>(std::find(ranks_.begin(), ranks_.end(), rank) - ranks_.begin());
    };
    GroupPlace place{.number = orders.group.number, .ranks = ranks_, .position = position(options_.all.rank)};
    if (orders.group.source) place.source = position(*orders.group.source);
    NativeOptions native{.identity = {.rank = place.position,
                                      .generation = place.number,
                                      .fingerprint = options_.all.fingerprint},
                         .connect_timeout = kMeetingTimeout,
                         .operation_timeout = options_.operation_timeout,
                         .shares_memory = options_.shares_memory && !memory_has_failed_,
                         .memory_has_failed = &memory_has_failed_};
    for (const int rank : ranks_) native.identity.members.push_back(MemberOf(rank));
    absl::StatusOr<ChosenGroup> group;
    auto met = MakeNative(native, *listener_, *interrupt_);
    if (met.ok()) {
      group = UseGpus(*std::move(met), native);
      if (absl::IsFailedPrecondition(group.status())) client_.Fail(std::string(group.status().message()));
    } else {
      group = met.status();
    }
    if (group.ok()) {
      client_.HasMet();
      group_ = std::move(group->group);
      is_by_gpus_ = group->is_by_gpus;
      return place;
    }
    const absl::Status left = Leave(group.status());
    if (!absl::IsCancelled(left)) return left;
    spdlog::warn("{}", std::string(left.message()));
  }
}

// Also of one that has joined since.
GroupMember ElasticGroup::MemberOf(int rank) const {
  if (rank < static_cast<int>(options_.all.members.size())) return options_.all.members[rank];
  return MemberAt(options_.view, TaskOfRank(options_.view->cluster(), rank));
}

absl::StatusOr<ChosenGroup> ElasticGroup::UseGpus(std::unique_ptr<Collective> met,
                                                  const NativeOptions& native) {
  GpuGroupOptions options{.rank = native.identity.rank,
                          .connect_timeout = std::min(kGpuMeetingTimeout, options_.operation_timeout),
                          .operation_timeout = options_.operation_timeout};
  for (const GroupMember& member : native.identity.members) options.names.push_back(Describe(member));
  return PreferGpus(std::move(met), gpus_, options, *interrupt_);
}

absl::Status ElasticGroup::Run(const Operation& operation) {
  MUSTER_RETURN_IF_ERROR(status());  // a group of one would never notice
  const TimePoint start = Now();
  return LeaveIfFailed(group_->Run(operation), start);
}

absl::Status ElasticGroup::Wait(Ticket ticket) {
  const TimePoint start = Now();
  return LeaveIfFailed(group_->Wait(ticket), start);
}

absl::Status ElasticGroup::LeaveIfFailed(const absl::Status& status, TimePoint start) {
  if (status.ok()) return status;
  departure_.waited = Now() - start;
  departure_.has_timed_out = absl::IsDeadlineExceeded(status);
  return Leave(status);
}

absl::Status ElasticGroup::status() {
  return interrupt_->is_set() ? client_.Explain(absl::OkStatus()) : absl::OkStatus();
}

absl::Status ElasticGroup::Finish(uint64_t step) {
  if (server_ != nullptr) {
    server_->Conclude(step);
    return absl::OkStatus();
  }
  return client_.AwaitConclusion();
}

Traffic ElasticGroup::traffic() const {
  const Traffic now = group_ != nullptr ? group_->traffic() : Traffic{};
  return {.sent_bytes = before_.sent_bytes + now.sent_bytes,
          .received_bytes = before_.received_bytes + now.received_bytes};
}

// What the failure of an operation, or of a meeting, means.
absl::Status ElasticGroup::Leave(const absl::Status& why) {
  if (why.ok() || !(IsOver(why) || (is_by_gpus_ && !absl::IsInvalidArgument(why)))) return why;
  if (const std::optional<int> position = UnreachablePosition(why)) {
    departure_.unreachable = ranks_[*position];
  }
  const absl::Status explanation =
      client_.Explain(why, /*is_reason=*/departure_.unreachable || departure_.has_timed_out);
  // If no rank is known to have gone, it is NCCL that failed, as it would in the next group.
  if (is_by_gpus_ && !interrupt_->is_set()) gpus_.GiveUp(std::string(why.message()));
  return explanation;
}

}  // namespace muster
