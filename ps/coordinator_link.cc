#include "ps/coordinator_link.h"

#include <algorithm>

#include "base/logging.h"

namespace muster {
namespace {

constexpr Duration kSilence = std::chrono::seconds(3);
constexpr Duration kWarnAgainAfter = std::chrono::seconds(30);

}  // namespace

CoordinatorLink::CoordinatorLink(CoordinatorLinkOptions options, Callbacks callbacks)
    : options_(std::move(options)),
      callbacks_(std::move(callbacks)),
      thread_([this](const std::stop_token& stop) { Run(stop); }) {}

CoordinatorLink::~CoordinatorLink() {
  thread_.request_stop();
  const std::lock_guard lock(mutex_);
  queue_->Push({});  // wakes it up, as if the connection had broken
}

void CoordinatorLink::Send(ps::ClientHeader header) {
  header.set_version(kWireVersion);
  const std::lock_guard lock(mutex_);
  if (connection_ != nullptr) connection_->Send(header, {});
}

void CoordinatorLink::Send(const ps::ShardReport& report) {
  ps::ClientHeader header;
  *header.mutable_shard_report() = report;
  Send(std::move(header));
}

void CoordinatorLink::SendJoin(const ps::ShardJoin& join) {
  ps::ClientHeader header;
  *header.mutable_shard_join() = join;
  Send(std::move(header));
}

void CoordinatorLink::Run(const std::stop_token& stop) {
  const TimePoint start = Now();
  TimePoint next_warning = start;
  if (options_.was_there) last_heard_ = start;
  for (size_t attempt = 0; !stop.stop_requested(); ++attempt) {
    const int server = options_.servers[attempt % options_.servers.size()];
    absl::Status status = Converse(server, stop);
    std::unique_ptr<ShardConnection> old;
    {
      const std::lock_guard lock(mutex_);
      old = std::move(connection_);
    }
    // Outside of the lock: it waits for threads that may wait for who wants to send.
    old = nullptr;
    if (stop.stop_requested() || status.ok()) return;
    if (absl::IsUnavailable(status) && last_heard_ && Now() - *last_heard_ > options_.server_timeout) {
      status = absl::DeadlineExceededError(absl::StrFormat("ps:0 at %s has not answered for %s",
                                                           options_.view->Address({Role::kPs, 0}),
                                                           FormatAge(Now() - *last_heard_)));
    }
    if (!absl::IsUnavailable(status)) return callbacks_.on_lost(status);
    const TimePoint since = last_heard_.value_or(start);
    if (Now() >= std::max(next_warning, since + kSilence)) {
      spdlog::warn("ps:{} has no connection to ps:0 at {} for {}: {}", options_.shard_index,
                   options_.view->Address({Role::kPs, 0}), FormatAge(Now() - since),
                   std::string(status.message()));
      next_warning = Now() + kWarnAgainAfter;
    }
    std::this_thread::sleep_for(options_.pause);
  }
}

// Over one connection. OK: the job has ended. Unavailable: it broke, or there was none; else it makes no
// sense to try again.
absl::Status CoordinatorLink::Converse(int server, const std::stop_token& stop) {
  const auto queue = std::make_shared<FrameQueue>();
  {
    const std::lock_guard lock(mutex_);
    queue_ = queue;
  }
  MUSTER_ASSIGN_OR_RETURN(
      auto connected, ShardConnection::Connect(options_.view, {Role::kPs, server}, options_.tls,
                                               options_.transport, Now() + options_.connect_timeout, queue));
  ShardConnection* const connection = connected.get();
  ps::ClientHeader join;
  join.set_version(kWireVersion);
  std::optional<ps::ShardJoin> own = callbacks_.join(stop);
  if (!own) return absl::OkStatus();
  *join.mutable_shard_join() = *std::move(own);
  connection->Send(join, {});
  {
    // From here on others may send, and what they say comes after the join.
    const std::lock_guard lock(mutex_);
    connection_ = std::move(connected);  // replaced by this thread only
  }
  const Duration patience = std::min<Duration>(options_.connect_timeout, options_.silence / 4);
  for (TimePoint heard = Now(); !stop.stop_requested();) {
    const auto reply = connection->Receive(Now() + patience);
    if (absl::IsDeadlineExceeded(reply.status())) {
      // Else gRPC's keepalive breaks a stream that is dead.
      if (Now() - heard > options_.silence) return Unavailable("silent for %s", FormatAge(Now() - heard));
      continue;
    }
    MUSTER_RETURN_IF_ERROR(reply.status());
    if (reply->header.has_not_primary()) {
      // The only one is about to.
      if (options_.servers.size() == 1) last_heard_ = Now();
      return Unavailable("it does not speak for shard 0");
    }
    if (reply->header.has_error()) {
      absl::Status status = StatusOf(reply->header.error(), "ps:0");
      // A standing ps:0 that waits for a job is not the one that has this.
      if (!absl::IsUnavailable(status)) last_heard_ = Now();
      return status;
    }
    last_heard_ = heard = Now();
    if (!reply->header.has_coordination()) continue;
    callbacks_.on_coordination(reply->header.coordination());
    if (reply->header.coordination().ended()) break;  // by hanging up ps:0 learns that it was heard
  }
  return absl::OkStatus();
}

}  // namespace muster
