// Finds hosts that are no longer where they were, by their SSH host keys.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "launcher/transport/known_hosts.h"
#include "launcher/transport/ssh_socket.h"

namespace muster {

struct WantedHost {
  std::string name;
  uint16_t port = 22;
  std::vector<HostKey> keys;  // any of these is its own
};

/// Looks for the hosts at these addresses, literals, and calls `found(host, address)` for each that answers
/// with the key of one: on other threads, one call after the other. That is no proof of who it is: whoever
/// logs in there checks the key again. Ends early once all are found. Gentle: some hundred connections are
/// being made at a time, a few keys asked for (of each host one of every type that those it may be have),
/// and nothing is sent beyond a key exchange. Cancelled.
absl::Status SearchForHosts(std::span<const std::string> addresses, const std::vector<WantedHost>& hosts,
                            int cancel_fd,
                            const std::function<void(const std::string&, const std::string&)>& found);

}  // namespace muster
