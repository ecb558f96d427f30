// The TCP connections of this process, whoever has made them.
#pragma once

#include <set>
#include <string>

namespace muster {

/// Shuts down those that have one of these IP addresses ("10.0.0.7", "fe80::1") at either end, as if the
/// other end had hung up: what waits for them, in libraries, too, which keep their sockets to themselves,
/// goes on at once. Sockets that listen are left alone. Returns how many there were. Any thread.
int ShutDownConnections(const std::set<std::string>& hosts);

}  // namespace muster
