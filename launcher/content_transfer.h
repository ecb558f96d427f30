// What the agent's program does with contents beside the conversation with it, each in a channel of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "launcher/agent_program.h"
#include "launcher/content_relay.h"
#include "launcher/contents.h"
#include "launcher/transport/transport.h"

namespace muster {

/// So many of the `total` bytes that the host needs have been handed to it.
using TransferProgress = std::function<void(uint64_t bytes, uint64_t total)>;

/// For a byte to move, or for the host to unpack what it has: before the reconciler gives up the connection.
inline constexpr Duration kUploadSilence = std::chrono::minutes(25);

/// A content on its way into a host's store. Belongs to the transport's thread, and ends before it.
/// Destroying it gives the transfer up.
class ContentTransfer {
 public:
  /// The launcher sends it, from the first byte that the host lacks. DeadlineExceeded when no byte has moved
  /// for `silence_limit`.
  static absl::StatusOr<std::unique_ptr<ContentTransfer>> Upload(Transport& transport,
                                                                 const AgentPlace& place,
                                                                 const Content& content,
                                                                 TransferProgress progress,
                                                                 Duration silence_limit);
  /// The host gets it from another one.
  static absl::StatusOr<std::unique_ptr<ContentTransfer>> Fetch(Transport& transport, const AgentPlace& place,
                                                                const Content& content,
                                                                const ContentSource& source,
                                                                TransferProgress progress,
                                                                TimePoint deadline);
  ContentTransfer(const ContentTransfer&) = delete;

  /// Does what can be done without waiting.
  void Pump();
  /// What the next Pump waits for, at most until its deadline.
  PollItem poll_item() const;
  TimePoint deadline() const { return deadline_; }
  /// How it ended, once it has. Aborted: the source of a fetch is to blame.
  const std::optional<absl::Status>& result() const { return result_; }

 private:
  ContentTransfer(const Transport& transport, Content content, TransferProgress progress);
  absl::Status Listen();
  absl::Status Send();
  absl::Status Ended(int exit_code) const;
  absl::Status TooSlow() const;

  const std::string host_;
  const Content content_;  // keeps the bytes alive
  const TransferProgress progress_;
  TimePoint deadline_;
  Duration silence_limit_{};  // of an upload, whose deadline it moves
  std::string secret_;        // the input of a fetch, which stays open: it ends with its launcher
  std::string source_;        // of a fetch; "": an upload
  std::string_view rest_;     // of the input
  uint64_t total_ = 0;        // bytes that the host still needed when it began
  bool has_begun_ = false;    // the host has said what it needs
  bool all_sent_ = false;     // nothing is left to do but to wait for the end
  std::unique_ptr<CommandChannel> channel_;
  LineBuffer lines_;
  std::optional<absl::Status> result_;
};

/// A host that passes on what it has, at an address of its own, to those who know the secret, and the agent
/// to those who have the ticket; until it is destroyed, or ends by itself. Belongs to the transport's thread,
/// and ends before it.
class ContentServer {
 public:
  static absl::StatusOr<std::unique_ptr<ContentServer>> Start(Transport& transport, const AgentPlace& place,
                                                              const ContentSource& as, TimePoint deadline);
  ContentServer(const ContentServer&) = delete;

  /// As for a transfer.
  void Pump();
  PollItem poll_item() const;
  TimePoint deadline() const { return is_known_ ? TimePoint::max() : deadline_; }
  /// There is something for TakeNews.
  bool has_news() const { return news_.has_value(); }
  /// The port, once it is known; later an error, once, if the server has ended. Nothing otherwise.
  std::optional<absl::StatusOr<uint32_t>> TakeNews();

 private:
  ContentServer(const Transport& transport, std::string input, TimePoint deadline);
  absl::Status Advance();

  const std::string host_;
  const TimePoint deadline_;  // for the port
  std::string input_;         // what is left of it
  bool is_known_ = false;     // the port
  std::unique_ptr<CommandChannel> channel_;
  LineBuffer lines_;
  std::optional<absl::StatusOr<uint32_t>> news_;
};

}  // namespace muster
