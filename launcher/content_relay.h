// ContentRelay: the RelayPlan of a job, shared by the sessions of its hosts.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "base/clock.h"
#include "launcher/relay_plan.h"

namespace muster {

/// Where a host passes contents on to those who know the secret.
struct ContentSource {
  std::string host;
  std::string address;
  uint32_t port = 0;
  std::string secret;
  std::string ticket;  // to those who lack the agent, that
};

/// Of a content that a host lacks, on its way there.
struct UploadStep {
  std::string host;
  std::string content;
  std::string source;   // the host that passes it on; "": the launcher sends it
  std::string problem;  // it did not come from there, and comes in another way
  uint64_t sent_bytes = 0;
  uint64_t total_bytes = 0;
};

/// What the plan wants a host's session to do. `content`, `source`: as in RelayPlan::Action.
struct RelayOrder {
  RelayPlan::Action::Kind kind;
  std::string content;
  ContentSource source;
};

/// Any thread. Orders are handed out while a lock is held: `take` must not call back.
class ContentRelay {
 public:
  using Take = std::function<void(RelayOrder)>;

  /// Before all else that is said of the host; after Leave nothing is taken any more.
  void Join(const std::string& host, Take take);
  void Leave(const std::string& host);
  /// All leave: nothing is taken any more.
  void Close();

  // As in RelayPlan.
  void Want(const std::string& host, const std::string& content);
  void Has(const std::string& host, const std::string& content);
  void GiveUp(const std::string& host, const std::string& content);
  void FetchFailed(const std::string& host, const std::string& content);
  void Serving(const ContentSource& source);
  void NotServing(const std::string& host);
  void Gone(const std::string& host);
  /// Something of a content has come to a host that somebody may wait for.
  void NoteProgress();
  /// When that was said last.
  TimePoint progress_at();
  /// Does something only when the deadline has passed.
  void Tick();
  std::optional<TimePoint> deadline();

 private:
  void Dispatch(const RelayPlan::Actions& actions);

  std::mutex mutex_;  // guards all of the following
  RelayPlan plan_;
  TimePoint progress_at_;
  std::map<std::string, Take> sessions_;
  std::map<std::string, ContentSource> sources_;
};

}  // namespace muster
