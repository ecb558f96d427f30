// ContentDelivery: how a host comes to have the contents that it is to have, from the launcher or from
// another host, and passes them on.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "launcher/agent_connection.h"
#include "launcher/content_relay.h"
#include "launcher/contents.h"

namespace muster {

struct ContentDeliveryOptions {
  std::string host;
  std::string data_address;  // at which others get what it has
  const Contents* contents = nullptr;
  std::string agent;              // its program, which the host has
  ContentRelay* relay = nullptr;  // null: the host has nothing to do with others
  int cancel_fd = -1;             // readable: give up what is under way
  std::function<void(UploadStep)> progress;
  /// What is waited for gets somewhere: at most once a second, and not in the first one of a transfer, in
  /// which it may only have filled this machine's buffers.
  std::function<void()> on_coming;
};

/// Of one connection, by whose thread it is used, and which outlives it. Transfers go on while the connection
/// is used for other things: a host that has much to receive is not a silent one, and can be told to stop.
class ContentDelivery {
 public:
  ContentDelivery(AgentConnection& agent, ContentDeliveryOptions options);
  /// The relay forgets the host.
  ~ContentDelivery();
  ContentDelivery(const ContentDelivery&) = delete;

  /// Begins to make those present in the host's store, which TakeResult ends. One at a time.
  void Ensure(const std::vector<std::string>& contents);
  /// What the relay wants. A content that is not waited for (any more) does not come.
  void Obey(const RelayOrder& order);
  /// After each of the connection's Receive, which is to return at the deadline.
  void Advance();
  TimePoint deadline() const;

  /// How that ended, once; nothing while it goes on. Unavailable: the connection is lost.
  std::optional<absl::Status> TakeResult();

 private:
  absl::StatusOr<std::deque<std::string>> Missing(const std::vector<std::string>& contents);
  bool IsRelayed(const std::string& content) const;
  void BeginNext();
  absl::Status BeginUpload(const Content& content);
  absl::Status BeginFetch(const Content& content, const ContentSource& source);
  absl::Status BeginBesideServing(const std::function<absl::Status()>& begin);
  void Report(UploadStep step);
  void NoteProgress();
  void EndTransfer(const absl::Status& status);
  void FailTransfer(const absl::Status& status);
  void Serve();
  void Fail(const absl::Status& status);

  AgentConnection& agent_;
  const ContentDeliveryOptions options_;
  std::deque<std::string> missing_;  // hashes; the front one is on its way
  bool waits_for_relay_ = false;     // which says where that comes from
  TimePoint heard_of_relay_;         // the last progress elsewhere that was told
  TimePoint coming_at_;              // not before is progress told again
  std::string source_;               // another host; "": the launcher sends it
  ContentSource server_;             // the host's own
  std::optional<absl::Status> result_;
};

}  // namespace muster
