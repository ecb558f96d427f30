#include "launcher/content_delivery.h"

#include <poll.h>

#include <algorithm>
#include <utility>

#include "base/random.h"

namespace muster {
namespace {

constexpr Duration kCallTimeout = std::chrono::seconds(10);
constexpr Duration kComingEvery = std::chrono::seconds(1);
constexpr size_t kLeastRelayedBytes = size_t{1} << 20;

// Below a megabyte a second another source may do better.
Duration FetchTimeout(const Content& content) {
  return std::chrono::seconds(60) + std::chrono::seconds(content.bytes->size() >> 20);
}

}  // namespace

ContentDelivery::ContentDelivery(AgentConnection& agent, ContentDeliveryOptions options)
    : agent_(agent), options_(std::move(options)) {
  if (options_.relay != nullptr) options_.relay->Has(options_.host, options_.agent);
}

ContentDelivery::~ContentDelivery() {
  if (options_.relay != nullptr) options_.relay->Gone(options_.host);
}

void ContentDelivery::Ensure(const std::vector<std::string>& contents) {
  auto missing = Missing(contents);
  if (!missing.ok()) return Fail(missing.status());
  missing_ = *std::move(missing);
  BeginNext();
}

absl::StatusOr<std::deque<std::string>> ContentDelivery::Missing(const std::vector<std::string>& contents) {
  agent::Request request;
  request.mutable_store();
  for (const std::string& sha256 : contents) request.mutable_store()->add_sha256(sha256);
  MUSTER_ASSIGN_OR_RETURN(const agent::Response response, agent_.Call(request, Now() + kCallTimeout));
  const auto& present = response.store().present_sha256();
  std::deque<std::string> missing;
  for (const std::string& sha256 : contents) {
    if (std::find(present.begin(), present.end(), sha256) != present.end()) {
      if (IsRelayed(sha256)) options_.relay->Has(options_.host, sha256);
      continue;
    }
    if (!options_.contents->contains(sha256)) {
      return FailedPrecondition("%s no longer has what the job needs: run the job file again", options_.host);
    }
    missing.push_back(sha256);
  }
  return missing;
}

// A small one is there before another host could be asked for it.
bool ContentDelivery::IsRelayed(const std::string& content) const {
  const auto found = options_.contents->find(content);
  return options_.relay != nullptr && found != options_.contents->end() &&
         found->second.bytes->size() >= kLeastRelayedBytes;
}

void ContentDelivery::BeginNext() {
  if (missing_.empty()) {
    result_ = absl::OkStatus();
    return;
  }
  const std::string& sha256 = missing_.front();
  waits_for_relay_ = IsRelayed(sha256);
  if (waits_for_relay_) return options_.relay->Want(options_.host, sha256);
  if (const absl::Status begun = BeginUpload(options_.contents->at(sha256)); !begun.ok()) FailTransfer(begun);
}

void ContentDelivery::Obey(const RelayOrder& order) {
  using Kind = RelayPlan::Action::Kind;
  if (order.kind == Kind::kServe) return Serve();
  if (order.kind == Kind::kEndServing) return agent_.EndServing();
  if (!waits_for_relay_ || missing_.front() != order.content) return;
  waits_for_relay_ = false;
  const Content& content = options_.contents->at(order.content);
  const absl::Status begun =
      order.kind == Kind::kUpload ? BeginUpload(content) : BeginFetch(content, order.source);
  if (!begun.ok()) FailTransfer(begun);
}

absl::Status ContentDelivery::BeginUpload(const Content& content) {
  source_.clear();
  coming_at_ = Now() + kComingEvery;
  return BeginBesideServing([&] {
    return agent_.BeginUpload(
        content,
        [this, name = content.name](uint64_t bytes, uint64_t total) {
          Report({.host = options_.host, .content = name, .sent_bytes = bytes, .total_bytes = total});
        },
        kUploadSilence);
  });
}

absl::Status ContentDelivery::BeginFetch(const Content& content, const ContentSource& source) {
  source_ = source.host;
  coming_at_ = Now() + kComingEvery;
  const auto progress = [this, name = content.name](uint64_t bytes, uint64_t total) {
    Report({.host = options_.host,
            .content = name,
            .source = source_,
            .sent_bytes = bytes,
            .total_bytes = total});
  };
  progress(0, content.bytes->size());
  return BeginBesideServing(
      [&] { return agent_.BeginFetch(content, source, progress, Now() + FetchTimeout(content)); });
}

// An sshd may have room for no third channel (MaxSessions): its own contents come first. It has room when the
// server has ended, which is soon.
absl::Status ContentDelivery::BeginBesideServing(const std::function<absl::Status()>& begin) {
  const absl::Status begun = begin();
  if (!absl::IsUnavailable(begun) || !agent_.is_serving()) return begun;
  agent_.EndServing();
  options_.relay->NotServing(options_.host);
  const TimePoint deadline = Now() + std::chrono::seconds(3);
  while (true) {
    const absl::Status again = begin();
    if (!absl::IsUnavailable(again) || Now() >= deadline) return again;
    pollfd cancel{.fd = options_.cancel_fd, .events = POLLIN, .revents = 0};
    if (::poll(&cancel, 1, 50) > 0) return again;
  }
}

void ContentDelivery::Report(UploadStep step) {
  options_.progress(std::move(step));
  NoteProgress();
}

void ContentDelivery::NoteProgress() {
  const TimePoint now = Now();
  if (now < coming_at_) return;
  coming_at_ = now + kComingEvery;
  options_.on_coming();
  if (options_.relay != nullptr && !waits_for_relay_) options_.relay->NoteProgress();
}

void ContentDelivery::Serve() {
  server_ = {.host = options_.host,
             .address = options_.data_address,
             .secret = RandomSecret(),
             .ticket = RandomSecret()};
  const absl::Status begun = agent_.BeginServing(server_, Now() + kCallTimeout);
  // That the connection is lost, if so, the next answer will say.
  if (!begun.ok()) options_.relay->NotServing(options_.host);
}

TimePoint ContentDelivery::deadline() const {
  if (!waits_for_relay_) return TimePoint::max();
  // Others may bring the relay's forward meanwhile, though not to less than its patience from then on.
  return std::min(Now() + RelayPlan::kPatience, options_.relay->deadline().value_or(TimePoint::max()));
}

void ContentDelivery::Advance() {
  if (waits_for_relay_) {
    options_.relay->Tick();
    const TimePoint progress_at = options_.relay->progress_at();
    if (std::exchange(heard_of_relay_, progress_at) != progress_at) NoteProgress();
  }
  if (const auto serving = agent_.TakeServing()) {
    if (serving->ok()) {
      server_.port = **serving;
      options_.relay->Serving(server_);
    } else {
      options_.relay->NotServing(options_.host);
    }
  }
  if (const auto ended = agent_.TakeTransferResult()) EndTransfer(*ended);
}

void ContentDelivery::EndTransfer(const absl::Status& status) {
  const std::string sha256 = missing_.front();
  const Content& content = options_.contents->at(sha256);
  if (absl::IsAborted(status)) {
    options_.progress({.host = options_.host,
                       .content = content.name,
                       .source = source_,
                       .problem = std::string(status.message())});
    waits_for_relay_ = true;
    return options_.relay->FetchFailed(options_.host, sha256);
  }
  if (!status.ok()) return FailTransfer(status);
  if (!source_.empty()) {
    options_.progress({.host = options_.host,
                       .content = content.name,
                       .source = std::exchange(source_, ""),
                       .sent_bytes = content.bytes->size(),
                       .total_bytes = content.bytes->size()});
  }
  if (IsRelayed(sha256)) options_.relay->Has(options_.host, sha256);
  missing_.pop_front();
  BeginNext();
}

// A connection that lives may have room for no other channel, or lose one.
void ContentDelivery::FailTransfer(const absl::Status& status) {
  const bool lives =
      absl::IsUnavailable(status) && absl::IsDeadlineExceeded(agent_.transport().Poll({}, -1, Now()));
  Fail(lives ? FailedPrecondition("%s", std::string(status.message())) : status);
}

void ContentDelivery::Fail(const absl::Status& status) {
  if (!missing_.empty() && IsRelayed(missing_.front())) {
    options_.relay->GiveUp(options_.host, missing_.front());
  }
  missing_.clear();
  waits_for_relay_ = false;
  result_ = status;
}

std::optional<absl::Status> ContentDelivery::TakeResult() { return std::exchange(result_, std::nullopt); }

}  // namespace muster
