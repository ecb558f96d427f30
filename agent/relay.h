// Hosts pass contents on to each other: `muster-agent serve` on one that has them, `muster-agent fetch` on
// one that needs them. The launcher gives both a secret, which lives as long as the server does. A host that
// lacks the agent, too, gets it from there.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace muster {

struct ServeOptions {
  std::filesystem::path root;
  std::string address;  // literal, of this host
  std::string secret;   // of RandomSecret
  /// Of RandomSecret, too: whoever says it in the clear gets the agent's own program likewise. It is in no
  /// need of secrecy, and its hash is known to who has it run.
  std::string ticket;
  /// Called once it listens, on a port that is leased to no task.
  std::function<absl::Status(uint32_t port)> listening;
  int stop_fd = 0;
};

/// Sends whoever knows the secret what it asks for of root/store, and this program to whoever has the ticket,
/// each in a thread of its own and at most eight at a time, with room beside them for 64 who have not shown
/// yet that they know one, until `stop_fd` becomes readable or ends, which ends all of them, or nobody has
/// come for ten minutes (OK): an sshd may not notice that its client has gone. InvalidArgument: the address
/// is no literal IP or not of this host, or secret or ticket are none. SIGPIPE must be ignored.
absl::Status Serve(const ServeOptions& options);

struct FetchOptions {
  std::filesystem::path root;
  std::string sha256;
  uint64_t size = 0;  // of the archive, bytes
  std::string address;
  uint32_t port = 0;
  std::string secret;
  int stop_fd = 0;
  /// Called about once a second with the bytes of the archive that have come. An error ends it.
  std::function<absl::Status(uint64_t bytes)> progress = {};
  /// Of the server. Another one may do better; this one waits longer for its clients, whose disks may be
  /// slow.
  Duration silence_limit = std::chrono::seconds(10);
};

/// Gets a content from the server at an address into root/store, as Store does. Unavailable: that server is
/// to blame, and another one might do: its host does not answer within 5 s, it has another secret, is silent
/// for too long, lacks the content or sends another one. Cancelled: `stop_fd` became readable or ended.
/// SIGPIPE must be ignored.
absl::StatusOr<std::string> Fetch(const FetchOptions& options);

}  // namespace muster
