#include "collective/rendezvous_client.h"

#include <poll.h>

#include <algorithm>

#include "base/random.h"
#include "collective/rendezvous_server.h"

namespace muster {
namespace {

constexpr Duration kSilence = std::chrono::milliseconds(1500);  // after which the rendezvous is lost
constexpr Duration kAttempt = std::chrono::seconds(5);          // to connect to it
constexpr Duration kPause = std::chrono::milliseconds(50);      // before it is tried again
// The rendezvous needs no longer to notice that a rank is silent, and to tell all.
constexpr Duration kExplanation = std::chrono::seconds(2);
// Who knows what the rendezvous cannot see is to report it before others leave without knowing why.
constexpr Duration kShortExplanation = std::chrono::milliseconds(500);
constexpr Duration kFarewell = std::chrono::seconds(2);

}  // namespace

RendezvousClient::RendezvousClient(RendezvousClientOptions options, std::shared_ptr<TlsContext> tls)
    : options_(std::move(options)), tls_(std::move(tls)), process_(RandomSeed()) {
  if (options_.view != nullptr) watch_.emplace(options_.view->OnChange([this] { wake_.Set(); }));
  thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
}

RendezvousClient::~RendezvousClient() {
  thread_.request_stop();
  stop_.Set();
  wake_.Set();
}

absl::StatusOr<RankOrders> RendezvousClient::Join(std::optional<ParametersVersion> parameters,
                                                  const Departure& departure,
                                                  std::shared_ptr<Interrupt> interrupt) {
  std::unique_lock lock(mutex_);
  state_ = {.group = state_.group,
            .over = state_.over,
            .parameters = parameters,
            .unreachable = departure.unreachable,
            .waited = departure.waited,
            .has_timed_out = departure.has_timed_out};
  takes_part_ = is_to_report_ = true;
  wake_.Set();
  const auto is_in_next = [&] {
    const RankGroup& group = orders_.group;
    return !group.is_over && group.number > std::max(state_.group, state_.over) &&
           std::binary_search(group.ranks.begin(), group.ranks.end(), options_.all.rank);
  };
  // The rendezvous has deadlines, and this one for the rendezvous.
  changed_.wait(lock, [&] { return has_ended() || orders_.concluded || is_in_next(); });
  MUSTER_RETURN_IF_ERROR(end());
  if (orders_.concluded) return orders_;
  state_ = {.group = orders_.group.number, .is_in_it = true, .over = state_.over};
  interrupt_ = std::move(interrupt);
  why_.reset();
  is_to_report_ = true;
  wake_.Set();
  return orders_;
}

void RendezvousClient::HasMet() {
  const std::lock_guard lock(mutex_);
  state_.has_met = true;
  is_to_report_ = true;  // it is waited for the next group from the end of this one on, not of an earlier one
  wake_.Set();
}

absl::Status RendezvousClient::AwaitConclusion() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return has_ended() || orders_.concluded || why_; });
  MUSTER_RETURN_IF_ERROR(end());
  return orders_.concluded ? absl::OkStatus() : Cancelled("%s", *why_);
}

void RendezvousClient::Fail(const std::string& why) {
  std::unique_lock lock(mutex_);
  failure_ = ShortText(why);
  takes_part_ = is_to_report_ = true;
  wake_.Set();
  changed_.wait_for(lock, kFarewell, [&] { return has_ended(); });
}

absl::Status RendezvousClient::Explain(const absl::Status& status, bool is_reason) const {
  std::unique_lock lock(mutex_);
  // Not for the interrupt: a group that falls apart while it is made sets it, too.
  changed_.wait_for(lock, is_reason ? kShortExplanation : kExplanation, [&] { return has_ended() || why_; });
  MUSTER_RETURN_IF_ERROR(end());
  if (why_) return Cancelled("%s", *why_);
  const std::string message(status.message());
  return is_reason ? Cancelled("%s", message)
                   : Cancelled("%s; who was the first to go is not known", message);
}

RendezvousClient::Place RendezvousClient::PlaceNow() const {
  Place place{.there = options_.all.members.front().Address(), .own = ""};
  if (options_.view != nullptr) place.own = options_.view->Address(options_.view->own());
  return place;
}

void RendezvousClient::Run(const std::stop_token& stop) {
  const GroupMember& there = options_.all.members.front();
  bool has_connected = false;
  TimePoint lost_since = Now();
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      if (has_ended() || orders_.concluded || stop.stop_requested()) return;
    }
    collective::PeerHello hello = MakeHello(options_.all);
    hello.set_is_to_rendezvous(true);
    hello.set_incarnation(options_.incarnation);
    hello.set_process(process_);
    const Duration timeout = has_connected ? options_.return_timeout : options_.connect_timeout;
    const Place place = PlaceNow();
    if (options_.view != nullptr && place.own.empty()) return End(Aborted("%s", kHasLeft));
    auto stream = Dial(there, hello, tls_.get(), std::min(Now() + kAttempt, lost_since + timeout), stop_);
    if (stream.ok()) {
      has_connected = true;
      Talk(MessageStream(*std::move(stream)), place, stop);
      lost_since = Now();
    } else if (absl::IsFailedPrecondition(stream.status()) || absl::IsPermissionDenied(stream.status())) {
      End(stream.status());
    } else if (Now() - lost_since >= timeout) {
      End(Annotate(stream.status(), absl::StrFormat("waited %s in vain", FormatAge(timeout))));
    } else {
      pollfd fd{.fd = stop_.fd(), .events = POLLIN, .revents = 0};
      (void)::poll(&fd, 1, MillisecondsUntil(Now() + kPause));
    }
  }
}

// Until one of both ends it.
void RendezvousClient::Talk(MessageStream messages, const Place& place, const std::stop_token& stop) {
  TimePoint heard = Now(), heartbeat = Now();
  while (!stop.stop_requested()) {
    {
      const std::lock_guard lock(mutex_);
      if (has_ended() || orders_.concluded) return;
      if (Now() >= heartbeat) {
        is_to_report_ = true;
        heartbeat = Now() + kRendezvousHeartbeat;
      }
      if (takes_part_ && is_to_report_ && messages.is_flushed()) messages.Queue(MakeReport());
    }
    const absl::StatusOr<bool> is_flushed = messages.Flush();
    if (!is_flushed.ok()) return Lose(std::string(is_flushed.status().message()));
    const PeerStream& stream = messages.stream();
    short events = stream.events_to_receive();
    if (!*is_flushed) events |= stream.events_to_send();
    pollfd fds[] = {{.fd = wake_.fd(), .events = POLLIN, .revents = 0},
                    {.fd = stream.fd(), .events = events, .revents = 0}};
    (void)::poll(fds, 2, MillisecondsUntil(std::min(heartbeat, heard + kSilence)));
    wake_.Clear();
    while (true) {
      collective::GroupOrders orders;
      const absl::StatusOr<bool> is_one = messages.Receive(orders);
      if (!is_one.ok()) return Lose(std::string(is_one.status().message()));
      if (!*is_one) break;
      heard = Now();
      Obey(orders);
    }
    // TCP would notice it much later.
    if (PlaceNow() != place) return Lose("one of both ends has another address now");
    if (Now() - heard >= kSilence) {
      return Lose(absl::StrFormat("nothing was heard of it for %.1f s", ToSeconds(kSilence)));
    }
  }
}

collective::RankReport RendezvousClient::MakeReport() {
  collective::RankReport report;
  report.set_group(state_.group);
  report.set_is_in_it(state_.is_in_it);
  report.set_has_met(state_.has_met);
  report.set_over(state_.over);
  if (state_.parameters) {
    report.set_step(state_.parameters->step);
    report.set_step_group(state_.parameters->group);
    report.set_is_from_disk(!state_.parameters->is_live);
  }
  if (state_.unreachable) report.set_unreachable(static_cast<uint32_t>(*state_.unreachable));
  report.set_waited_ms(std::chrono::duration_cast<std::chrono::milliseconds>(state_.waited).count());
  report.set_has_timed_out(state_.has_timed_out);
  report.set_failure(failure_);
  is_to_report_ = false;
  return report;
}

void RendezvousClient::Obey(const collective::GroupOrders& orders) {
  if (orders.end_code() != 0) {
    return End(absl::Status(static_cast<absl::StatusCode>(orders.end_code()), orders.end()));
  }
  const std::lock_guard lock(mutex_);
  const bool is_news = orders.group() != orders_.group.number || orders.is_over() != orders_.group.is_over ||
                       orders.has_concluded() != orders_.concluded.has_value();
  if (!is_news) return;
  orders_ = {.group = {.number = orders.group(),
                       .ranks = {orders.ranks().begin(), orders.ranks().end()},
                       .is_over = orders.is_over(),
                       .why = orders.why()}};
  if (orders.has_source()) orders_.group.source = static_cast<int>(orders.source());
  if (orders.has_concluded()) orders_.concluded = orders.concluded();
  if (orders.is_over() && orders.group() > state_.over) {
    state_.over = orders.group();
    is_to_report_ = true;
  }
  const bool is_over = orders.group() != state_.group || orders.is_over();
  if (state_.is_in_it && is_over && !why_) {
    why_ = orders.why();
    interrupt_->Set();
  }
  changed_.notify_all();
}

// The rendezvous; and with it rank 0, and the group.
void RendezvousClient::Lose(const std::string& why) {
  const std::lock_guard lock(mutex_);
  orders_ = {.concluded = orders_.concluded};
  if (state_.is_in_it && !why_) {
    why_ = absl::StrFormat("%s has gone: %s", Describe(options_.all.members.front()), why);
    interrupt_->Set();
  }
  changed_.notify_all();
}

void RendezvousClient::End(const absl::Status& status) {
  const std::lock_guard lock(mutex_);
  if (has_ended()) return;
  end_code_ = status.code();
  end_ = std::string(status.message());
  if (interrupt_ != nullptr) interrupt_->Set();
  changed_.notify_all();
}

}  // namespace muster
