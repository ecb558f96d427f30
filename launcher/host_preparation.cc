#include "launcher/host_preparation.h"

#include <map>
#include <memory>
#include <optional>

#include "launcher/content_relay.h"
#include "launcher/event_queue.h"
#include "launcher/host_session.h"

namespace muster {
namespace {

class Preparation {
 public:
  Preparation(const Contents& contents, const PreparationOptions& options, RunObserver& observer)
      : contents_(contents), options_(options), observer_(observer) {}
  ~Preparation() {
    relay_.Close();
    sessions_.clear();
  }

  void Begin(const record::Host& host);
  void Drive();
  absl::Status ResultOf(const std::string& host) const {
    return results_.at(host).value_or(absl::OkStatus());
  }

 private:
  void Handle(const SessionEvent& event);
  void Handle(const reconcile::Event& event);
  void GiveUpOthers(const absl::Status& why);

  const Contents& contents_;
  const PreparationOptions& options_;
  RunObserver& observer_;
  TimePoint deadline_ = Now() + options_.connect_timeout + options_.contents_timeout;
  EventQueue<SessionEvent> queue_;
  ContentRelay relay_;
  std::map<std::string, std::optional<absl::Status>> results_;  // of each host; nothing: not yet
  size_t waiting_ = 0;                                          // for so many
  std::map<std::string, std::unique_ptr<HostSession>> sessions_;
};

void Preparation::Begin(const record::Host& host) {
  results_[host.name()] = std::nullopt;
  ++waiting_;
  auto& session = sessions_[host.name()];
  session = std::make_unique<HostSession>(
      HostSessionOptions{.host = host,
                         .job = options_.job,
                         .required_glibc = options_.required_glibc,
                         .connect = options_.connect,
                         .contents = &contents_,
                         .relay = &relay_,
                         .sink = [this](SessionEvent event) { queue_.Push(std::move(event)); }});
  session->Execute(
      reconcile::Connect{.host = host.name(), .connection = 1, .deadline = Now() + options_.connect_timeout});
}

void Preparation::Drive() {
  while (waiting_ > 0) {
    for (const SessionEvent& event : queue_.Wait(options_.interrupt_fd, deadline_)) Handle(event);
    if (options_.interrupts != nullptr && *options_.interrupts > 0) {
      GiveUpOthers(absl::CancelledError("interrupted"));
    } else if (Now() > deadline_) {
      GiveUpOthers(DeadlineExceeded("it takes too long"));
    }
  }
}

void Preparation::Handle(const SessionEvent& event) {
  if (const auto* facts = std::get_if<HostFacts>(&event)) observer_.OnHostFacts(*facts);
  if (const auto* upload = std::get_if<UploadStep>(&event)) observer_.OnUpload(*upload);
  if (const auto* change = std::get_if<reconcile::Event>(&event)) Handle(*change);
}

void Preparation::Handle(const reconcile::Event& event) {
  const auto end = [this](const std::string& host, const absl::Status& status) {
    std::optional<absl::Status>& result = results_.at(host);
    if (result) return;
    result = status;
    --waiting_;
  };
  if (std::holds_alternative<reconcile::ContentsComing>(event)) {
    deadline_ = Now() + options_.contents_timeout;
  }
  if (const auto* connected = std::get_if<reconcile::HostConnected>(&event)) {
    std::vector<std::string> all;
    for (const auto& [sha256, content] : contents_) all.push_back(sha256);
    sessions_.at(connected->host)
        ->Execute(reconcile::EnsureContents{.request = 1, .host = connected->host, .contents = all});
  }
  if (const auto* failed = std::get_if<reconcile::HostFailed>(&event)) end(failed->host, failed->status);
  if (const auto* failed = std::get_if<reconcile::RequestFailed>(&event)) end(failed->host, failed->status);
  if (const auto* ready = std::get_if<reconcile::ContentsReady>(&event)) end(ready->host, absl::OkStatus());
}

void Preparation::GiveUpOthers(const absl::Status& why) {
  for (auto& [host, result] : results_) {
    if (!result) result = Annotate(why, host);
  }
  waiting_ = 0;
}

}  // namespace

std::vector<absl::Status> PrepareHosts(const std::vector<record::Host>& hosts, const Contents& contents,
                                       const PreparationOptions& options, RunObserver& observer) {
  Preparation preparation(contents, options, observer);
  for (const record::Host& host : hosts) preparation.Begin(host);
  preparation.Drive();
  std::vector<absl::Status> statuses;
  for (const record::Host& host : hosts) statuses.push_back(preparation.ResultOf(host.name()));
  return statuses;
}

}  // namespace muster
