#include "collective/rendezvous_server.h"

#include <poll.h>

#include <algorithm>
#include <list>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "base/logging.h"
#include "base/wake.h"
#include "cluster/cluster_view.h"

namespace muster {
namespace {

constexpr Duration kFarewell = std::chrono::seconds(2);
constexpr Duration kHostSilence = std::chrono::seconds(10);  // of a rank that has not reported yet
constexpr uint64_t kLongestWaitMs = 1'000'000'000'000;       // that is believed: it fits a Duration

collective::GroupOrders OrdersOf(const Rendezvous& rendezvous) {
  const RankGroup& group = rendezvous.group();
  collective::GroupOrders orders;
  orders.set_group(group.number);
  for (const int rank : group.ranks) orders.add_ranks(static_cast<uint32_t>(rank));
  if (group.source) orders.set_source(static_cast<uint32_t>(*group.source));
  orders.set_is_over(group.is_over);
  orders.set_why(ShortText(group.why));
  if (rendezvous.concluded()) orders.set_concluded(*rendezvous.concluded());
  if (rendezvous.end()) {
    orders.set_end_code(static_cast<uint32_t>(rendezvous.end()->raw_code()));
    orders.set_end(ShortText(std::string(rendezvous.end()->message())));
  }
  return orders;
}

RankState StateOf(const collective::RankReport& report) {
  RankState state{.group = report.group(),
                  .is_in_it = report.is_in_it(),
                  .has_met = report.has_met(),
                  .over = report.over()};
  if (report.has_step()) {
    state.parameters = {
        .is_live = !report.is_from_disk(), .step = report.step(), .group = report.step_group()};
  }
  if (report.has_unreachable()) state.unreachable = static_cast<int>(report.unreachable());
  state.waited = std::chrono::milliseconds(std::min<uint64_t>(report.waited_ms(), kLongestWaitMs));
  state.has_timed_out = report.has_timed_out();
  return state;
}

std::string GenerationRefusal(const GroupIdentity& ours, const collective::PeerHello& theirs) {
  if (theirs.generation() >= ours.generation) return "";
  return absl::StrFormat("it is of generation %d of the cluster, the other rank of %d", ours.generation,
                         theirs.generation());
}

}  // namespace

class RendezvousServer::Impl {
 public:
  Impl(GroupIdentity all, RendezvousOptions options, PeerListener& listener, Members members)
      : members_now_(std::move(members)),
        listener_(listener),
        all_(std::move(all)),
        rendezvous_(Complete(all_, std::move(options)), Now()) {
    listener_.SetRendezvous([this](PeerListener::Arrival arrival) {
      const std::lock_guard lock(mutex_);
      arrivals_.push_back(std::move(arrival));
      wake_.Set();
    });
    thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
  }

  ~Impl() {
    thread_.request_stop();
    wake_.Set();
    thread_.join();
    listener_.SetRendezvous(nullptr);
  }

  void Conclude(uint64_t step) {
    const std::lock_guard lock(mutex_);
    concluded_ = step;
    wake_.Set();
  }

 private:
  struct Connection {
    int rank = 0;
    uint64_t incarnation = 0;
    uint64_t process = 0;
    MessageStream messages;
    bool has_reported = false;
    uint64_t version = 0;             // of what it was told last
    TimePoint heartbeat;              // when it is told again
    const char* dismissal = nullptr;  // not null: it has no part in anything any more, and is told why
  };

  static std::vector<std::string> NamesOf(const GroupIdentity& all) {
    std::vector<std::string> names;
    for (const GroupMember& member : all.members) names.push_back(Describe(member));
    return names;
  }
  static RendezvousOptions Complete(const GroupIdentity& all, RendezvousOptions options) {
    options.rank_names = NamesOf(all);
    // Groups are fewer than microseconds.
    options.first_number = static_cast<uint64_t>(std::max<int64_t>(1, WallTimeMicros()));
    return options;
  }

  bool has_ended() const { return rendezvous_.end() || rendezvous_.concluded(); }
  // That it has: they were told, and have hung up.
  bool all_know() const { return connections_.empty() && told_.size() == all_.members.size(); }
  void Run(const std::stop_token& stop);
  void Sleep();
  void Resize();
  void TakeRequests();
  void Welcome(PeerListener::Arrival arrival);
  void TurnAway(PeerListener::Arrival arrival);
  bool Listen(Connection& connection);
  bool Tell(Connection& connection);
  void Lose(const Connection& connection, const absl::Status& why);
  static void Dismiss(Connection& connection, const char* why) {
    connection.dismissal = why;
    connection.version = 0;
  }

  const Members members_now_;
  PeerListener& listener_;
  Wake wake_;

  // The thread's.
  GroupIdentity all_;
  Rendezvous rendezvous_;
  std::list<Connection> connections_;
  std::set<int> told_ = {0};       // ranks: of the end, or that they are refused; this process knows
  bool has_seen_later_ = false;    // a generation of the cluster
  bool has_seen_unknown_ = false;  // a rank that the job does not have

  std::mutex mutex_;
  std::vector<PeerListener::Arrival> arrivals_;
  std::optional<uint64_t> concluded_;

  std::jthread thread_;
};

void RendezvousServer::Impl::Run(const std::stop_token& stop) {
  TimePoint until = TimePoint::max();  // once it is to stop
  while (true) {
    // Before the requests: the last of them is made before.
    const bool is_to_stop = stop.stop_requested();
    Resize();
    TakeRequests();
    std::erase_if(connections_, [&](Connection& connection) { return !Listen(connection); });
    rendezvous_.Tick(Now());
    for (const std::string& notice : rendezvous_.TakeNotices()) spdlog::warn("{}", notice);
    std::erase_if(connections_, [&](Connection& connection) { return !Tell(connection); });
    if (is_to_stop && until == TimePoint::max()) until = Now() + kFarewell;
    if (is_to_stop && (!has_ended() || all_know() || Now() >= until)) return;
    Sleep();
  }
}

void RendezvousServer::Impl::Sleep() {
  std::vector<pollfd> fds = {{.fd = wake_.fd(), .events = POLLIN, .revents = 0}};
  TimePoint until = Now() + kRendezvousHeartbeat;
  for (Connection& connection : connections_) {
    const PeerStream& stream = connection.messages.stream();
    short events = stream.events_to_receive();
    if (!connection.messages.is_flushed()) events |= stream.events_to_send();
    fds.push_back({.fd = stream.fd(), .events = events, .revents = 0});
    until = std::min(until, connection.heartbeat);
  }
  (void)::poll(fds.data(), fds.size(), MillisecondsUntil(until));
  wake_.Clear();
}

void RendezvousServer::Impl::Resize() {
  if (!members_now_) return;
  std::optional<std::vector<GroupMember>> members = members_now_();
  if (!members) return;
  all_.members = *std::move(members);
  const int count = static_cast<int>(all_.members.size());
  for (Connection& connection : connections_) {
    if (connection.rank >= count) Dismiss(connection, kHasLeft);
  }
  std::erase_if(told_, [&](int rank) { return rank >= count; });
  rendezvous_.Resize(NamesOf(all_), Now());
}

void RendezvousServer::Impl::TakeRequests() {
  std::vector<PeerListener::Arrival> arrivals;
  {
    const std::lock_guard lock(mutex_);
    arrivals.swap(arrivals_);
    if (concluded_ && !rendezvous_.concluded()) rendezvous_.Conclude(*concluded_);
  }
  for (PeerListener::Arrival& arrival : arrivals) Welcome(std::move(arrival));
}

void RendezvousServer::Impl::Welcome(PeerListener::Arrival arrival) {
  const collective::PeerHello& hello = arrival.hello;
  if (hello.rank() >= all_.members.size()) return TurnAway(std::move(arrival));
  const int rank = static_cast<int>(hello.rank());
  const GroupMember& member = all_.members[rank];
  const absl::Status name = arrival.messages.stream().CheckPeerName(TlsName(member.task));
  if (!name.ok()) {
    spdlog::warn("who connected as {} is hung up on: {}", TaskName(member.task), std::string(name.message()));
    return;
  }
  if (hello.generation() > all_.generation) {
    // The rank 0 that it looks for takes this one's place soon: it dials again.
    if (!std::exchange(has_seen_later_, true)) {
      spdlog::warn("{} is hung up on: it is of generation {} of the cluster, this rank of {}",
                   Describe(member), hello.generation(), all_.generation);
    }
    return;
  }
  const auto present = std::find_if(connections_.begin(), connections_.end(), [&](const Connection& other) {
    return other.rank == rank && other.dismissal == nullptr;
  });
  const bool is_known = present != connections_.end();
  collective::PeerHelloReply reply;
  if (hello.generation() < all_.generation) {
    reply.set_refusal(GenerationRefusal(all_, hello));
  } else if (is_known && present->incarnation > hello.incarnation()) {
    reply.set_refusal(absl::StrFormat("a later process of %s is here already", TaskName(member.task)));
  } else {
    reply.set_refusal(members_now_ ? FingerprintRefusal(all_, hello) : Refusal(all_, hello));
    if (!reply.refusal().empty()) {
      const std::string own = TaskName(all_.members[all_.rank].task);
      rendezvous_.Refuse(rank, own + " says of itself that " + reply.refusal(), Now());
    }
  }
  arrival.messages.Queue(reply);
  (void)arrival.messages.Flush();  // it is the first thing that is sent there: there is room
  if (!reply.refusal().empty()) {
    spdlog::warn("{} was refused: {}", Describe(member), reply.refusal());
    told_.insert(rank);
    return;
  }
  if (is_known && present->process == hello.process()) {
    connections_.erase(present);
    rendezvous_.Disconnect(rank, "it has connected anew", Now());
  } else if (is_known) {
    Dismiss(*present, "another process of this task has taken its place");
  }
  rendezvous_.Connect(rank, hello.process(), Now());
  connections_.push_back({.rank = rank,
                          .incarnation = hello.incarnation(),
                          .process = hello.process(),
                          .messages = std::move(arrival.messages)});
}

// A rank that the job does not have.
void RendezvousServer::Impl::TurnAway(PeerListener::Arrival arrival) {
  const collective::PeerHello& hello = arrival.hello;
  if (members_now_ || hello.generation() > all_.generation) {
    // The job may have it in a moment, or another rank 0 take this one's place: it dials again.
    if (!std::exchange(has_seen_unknown_, true)) {
      spdlog::warn("rank {} is hung up on until this job has it: it has {} ranks", hello.rank(),
                   all_.members.size());
    }
    return;
  }
  std::string refusal = GenerationRefusal(all_, hello);
  if (refusal.empty()) refusal = Refusal(all_, hello);
  if (refusal.empty()) refusal = absl::StrFormat("there is no rank %d of %d", hello.rank(), hello.size());
  collective::PeerHelloReply reply;
  reply.set_refusal(refusal);
  arrival.messages.Queue(reply);
  (void)arrival.messages.Flush();
  spdlog::warn("rank {} was refused: {}", hello.rank(), refusal);
}

// False: it has gone.
bool RendezvousServer::Impl::Listen(Connection& connection) {
  while (true) {
    collective::RankReport report;
    const absl::StatusOr<bool> is_one = connection.messages.Receive(report);
    if (!is_one.ok()) {
      Lose(connection, is_one.status());
      return false;
    }
    if (!*is_one) return true;
    if (connection.dismissal != nullptr) continue;
    if (!report.failure().empty()) {
      rendezvous_.End(
          FailedPrecondition("%s: %s", TaskName(all_.members[connection.rank].task), report.failure()));
    }
    connection.has_reported = true;
    rendezvous_.Report(connection.rank, StateOf(report), Now());
  }
}

// False: it cannot be told anything any more.
bool RendezvousServer::Impl::Tell(Connection& connection) {
  const TimePoint now = Now();
  // One that reads a checkpoint says nothing, but its kernel does.
  if (!connection.has_reported && SilenceOf(connection.messages.stream()) > kHostSilence) {
    Lose(connection, Unavailable("its host has been silent for %s", FormatAge(kHostSilence)));
    return false;
  }
  const bool is_new = connection.version != rendezvous_.version();
  if (connection.messages.is_flushed() && (is_new || now >= connection.heartbeat)) {
    collective::GroupOrders orders = OrdersOf(rendezvous_);
    if (connection.dismissal != nullptr) {
      orders.set_end_code(static_cast<uint32_t>(absl::StatusCode::kAborted));
      orders.set_end(connection.dismissal);
    }
    connection.messages.Queue(orders);
    connection.version = rendezvous_.version();
    connection.heartbeat = now + kRendezvousHeartbeat;
    if (has_ended() && connection.rank < rendezvous_.rank_count()) told_.insert(connection.rank);
  }
  const absl::StatusOr<bool> flushed = connection.messages.Flush();
  if (flushed.ok()) return true;
  Lose(connection, flushed.status());
  return false;
}

void RendezvousServer::Impl::Lose(const Connection& connection, const absl::Status& why) {
  if (connection.dismissal != nullptr) return;
  rendezvous_.Disconnect(connection.rank, std::string(why.message()), Now());
}

RendezvousServer::RendezvousServer(GroupIdentity all, RendezvousOptions options, PeerListener& listener,
                                   Members members)
    : impl_(std::make_unique<Impl>(std::move(all), std::move(options), listener, std::move(members))) {}

RendezvousServer::~RendezvousServer() = default;

void RendezvousServer::Conclude(uint64_t step) { impl_->Conclude(step); }

}  // namespace muster
