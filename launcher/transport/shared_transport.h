// The transport through connections that another process of this user has already: the controller of a job
// that runs in the background lends its own (guest_commands.h), as ssh does with ControlMaster. So a command
// on 250 hosts costs them no key exchange, and takes a fifth of the time.
//
// Nothing is taken on trust that a login would check: the lender has checked the key of its host, and says
// whether that is one of those that this process knows the host by, and whether it is where this one would
// look for it. Whatever it does not have, or will not do, goes through a connection of one's own.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launcher/transport/known_hosts.h"
#include "launcher/transport/transport.h"

namespace muster {

/// The processes that lend their connections, by the sockets at which they listen, and the keys by which this
/// one knows its hosts. Any thread.
struct LentConnections {
  std::vector<std::filesystem::path> sockets;
  KnownHosts known_hosts;
};

/// Those of the paths at which somebody listens now.
std::vector<std::filesystem::path> ListenedAt(std::vector<std::filesystem::path> paths);

struct SharedTarget {
  std::string host;
  std::string place;                   // account and address, as both ends write them
  std::vector<std::string> host_keys;  // fingerprints
};

std::vector<std::string> FingerprintsOf(const KnownHosts& known_hosts, const std::string& host);

/// Looks for a lender when a command is started; from the first that none of them takes, all go through what
/// `connect` makes. Null: there is nothing else, and it fails with Unavailable. A command whose lender dies
/// goes on on its host, as one whose connection is lost.
std::unique_ptr<Transport> MakeSharedTransport(
    SharedTarget target, std::vector<std::filesystem::path> lenders,
    std::function<absl::StatusOr<std::unique_ptr<Transport>>()> connect);

}  // namespace muster
