#include "launcher/open_transport.h"

#include <absl/strings/str_format.h>

#include <cstdlib>
#include <utility>

namespace muster {

std::string PlaceOf(const record::Host& host) {
  std::string place = absl::StrFormat("%s@%s %d", host.user(), host.ssh_address(), host.ssh_port());
  for (const record::JumpHost& jump : host.jumps()) {
    place += absl::StrFormat(" by %s@%s %d", jump.user(), jump.address(), jump.port());
  }
  return place;
}

absl::StatusOr<std::unique_ptr<Transport>> OpenTransport(const record::Host& host,
                                                         const ConnectOptions& options, TimePoint deadline) {
  if (host.local()) {
    const char* home = std::getenv("HOME");
    const auto known = options.local_hosts.find(host.name());
    return MakeLocalTransport(known != options.local_hosts.end()
                                  ? known->second
                                  : LocalOptions{.name = host.name(), .home = home != nullptr ? home : "/"});
  }
  if (options.lent != nullptr && !options.lent->sockets.empty()) {
    ConnectOptions own = options;
    own.lent = nullptr;
    const Duration timeout = deadline - Now();
    return MakeSharedTransport({.host = host.name(),
                                .place = PlaceOf(host),
                                .host_keys = FingerprintsOf(options.lent->known_hosts, host.name())},
                               options.lent->sockets, [host, own = std::move(own), timeout] {
                                 return OpenTransport(host, own, Now() + timeout);
                               });
  }
  SshTarget target{.name = host.name(),
                   .address = host.ssh_address(),
                   .port = static_cast<uint16_t>(host.ssh_port()),
                   .user = host.user(),
                   .identities = {host.identities().begin(), host.identities().end()}};
  for (const record::JumpHost& jump : host.jumps()) {
    target.jumps.push_back({.name = jump.name(),
                            .address = jump.address(),
                            .port = static_cast<uint16_t>(jump.port()),
                            .user = jump.user(),
                            .identities = {jump.identities().begin(), jump.identities().end()}});
  }
  return SshTransport::Connect(target, options.ssh, deadline);
}

}  // namespace muster
