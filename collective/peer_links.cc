#include "collective/peer_links.h"

#include <absl/strings/cord.h>
#include <absl/strings/numbers.h>
#include <poll.h>

#include <algorithm>
#include <array>

namespace muster {
namespace {

// So that both directions get on, and what was received is in cache. Who receives more than the other one
// sends at once is done sooner, and by much. Measured: bench/RESULTS.md.
constexpr size_t kMostSentAtOnce = 160 << 10;
constexpr size_t kMostReceivedAtOnce = 256 << 10;

// A kernel that acknowledges nothing for so long, keepalives included, is not reached any more.
constexpr Duration kSilence = std::chrono::seconds(3);
constexpr Duration kLook = std::chrono::milliseconds(500);

constexpr char kUnreachable[] = "muster/unreachable";

// `status`, because of that rank.
absl::Status WithUnreachable(absl::Status status, int rank) {
  status.SetPayload(kUnreachable, absl::Cord(std::to_string(rank)));
  return status;
}

}  // namespace

PeerLinks::PeerLinks(GroupIdentity identity, PeerListener& listener, Duration timeout,
                     const Interrupt& interrupt)
    : identity_(std::move(identity)), listener_(listener), timeout_(timeout), interrupt_(interrupt) {}

absl::Status PeerLinks::Connect(const std::set<int>& ranks, TimePoint deadline) {
  // Lower ranks first: rank 0 only accepts, so that no two ever wait for each other.
  for (const int rank : ranks) {
    if (rank == identity_.rank || streams_.contains(rank)) continue;
    auto stream = rank < identity_.rank ? Dial(identity_.members[rank], MakeHello(identity_),
                                               listener_.tls().get(), deadline, interrupt_)
                                        : listener_.Accept(identity_, rank, deadline, interrupt_);
    if (absl::IsUnavailable(stream.status())) return WithUnreachable(stream.status(), rank);
    MUSTER_RETURN_IF_ERROR(stream.status());
    streams_[rank] = *std::move(stream);
  }
  return absl::OkStatus();
}

absl::Status PeerLinks::Drive(Flow& flow, int send_to, int receive_from) {
  PeerStream& to = *streams_.at(send_to);
  PeerStream& from = *streams_.at(receive_from);
  TimePoint deadline = Now() + timeout_;
  absl::Status failed;
  // Whether anything went on, or failed.
  const auto go_on = [&] {
    bool moved = false;
    if (const auto bytes = flow.ToSend(); !bytes.empty()) {
      const auto sent = to.Send(bytes.first(std::min(bytes.size(), kMostSentAtOnce)));
      if (!sent.ok()) failed = Annotate(sent.status(), Describe(identity_.members[send_to]));
      if (sent.ok() && *sent > 0) {
        flow.Sent(*sent);
        traffic_.sent_bytes += *sent;
      }
      moved = !sent.ok() || *sent > 0;
    }
    if (const auto room = flow.Room(); !room.empty() && failed.ok()) {
      const auto received = from.Receive(room.first(std::min(room.size(), kMostReceivedAtOnce)));
      if (!received.ok()) failed = Annotate(received.status(), Describe(identity_.members[receive_from]));
      if (received.ok() && *received > 0) {
        flow.Received(*received);
        traffic_.received_bytes += *received;
      }
      moved = moved || !received.ok() || *received > 0;
    }
    return moved;
  };
  while (!flow.is_done()) {
    const bool moved = spin_.Await(go_on);
    MUSTER_RETURN_IF_ERROR(failed);
    if (interrupt_.is_set()) return Cancelled("the group was given up");
    const TimePoint start = Now();
    if (moved) {
      deadline = start + timeout_;
      if (progress_ != nullptr) progress_->fetch_add(1, std::memory_order_relaxed);
      continue;
    }
    if (start >= deadline) {
      const int silent = flow.Room().empty() ? send_to : receive_from;
      return DeadlineExceeded("%s has not done its part for %s", Describe(identity_.members[silent]),
                              FormatAge(timeout_));
    }
    MUSTER_RETURN_IF_ERROR(
        Sleep(to, from, !flow.ToSend().empty(), !flow.Room().empty(), std::min(deadline, start + kLook)));
    for (const int rank : {send_to, receive_from}) {
      if (SilenceOf(*streams_.at(rank)) < kSilence) continue;
      return WithUnreachable(Unavailable("%s is not reached any more: nothing has come from its host for %s",
                                         Describe(identity_.members[rank]), FormatAge(kSilence)),
                             rank);
    }
    spin_.Slept(Now() - start);
  }
  return absl::OkStatus();
}

std::optional<int> UnreachablePosition(const absl::Status& status) {
  const auto rank = status.GetPayload(kUnreachable);
  int position = 0;
  if (!rank || !absl::SimpleAtoi(std::string(*rank), &position)) return std::nullopt;
  return position;
}

absl::Status PeerLinks::Sleep(const PeerStream& to, const PeerStream& from, bool sends, bool receives,
                              TimePoint deadline) {
  // Two entries also for one connection: poll allows it. A peer that has hung up, and is not needed any more,
  // wakes nobody.
  std::array<pollfd, 3> fds = {
      {{.fd = sends ? to.fd() : -1, .events = to.events_to_send(), .revents = 0},
       {.fd = receives ? from.fd() : -1, .events = from.events_to_receive(), .revents = 0},
       {.fd = interrupt_.fd(), .events = POLLIN, .revents = 0}}};
  if (::poll(fds.data(), fds.size(), MillisecondsUntil(deadline)) < 0 && errno != EINTR) {
    const int error = errno;
    return ErrnoError(error, "poll");
  }
  return absl::OkStatus();
}

}  // namespace muster
