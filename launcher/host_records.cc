#include "launcher/host_records.h"

#include <absl/strings/ascii.h>

#include <filesystem>

#include "launcher/transport/ssh_auth.h"
#include "launcher/transport/ssh_socket.h"

namespace muster {
namespace {

absl::StatusOr<std::string> FindDataAddress(const Host& host, TimePoint deadline) {
  if (!host.data_address.empty()) return host.data_address;
  if (host.local) return "127.0.0.1";
  if (!host.jumps.empty() && !IsIpAddress(host.ssh_address)) {
    return InvalidArgument(
        "%s: host %s: what %s means is known behind its jump host only; give the host `data: ADDRESS`",
        host.position.ToString(), host.name, host.ssh_address);
  }
  const auto address = LookUpAddress(host.ssh_address, {.deadline = deadline});
  if (address.ok()) return address;
  return InvalidArgument("%s: host %s: %s (or give the host `data: ADDRESS`)", host.position.ToString(),
                         host.name, std::string(address.status().message()));
}

// A job is also looked at, and gone on with, from other folders than the one it was begun in.
std::string FromAnywhere(const std::string& identity) {
  std::error_code error;
  const auto path = std::filesystem::absolute(identity, error);
  return identity == kNoIdentity || error ? identity : path.lexically_normal().string();
}

}  // namespace

record::Host RecordOf(const Host& host) {
  record::Host out;
  out.set_name(host.name);
  out.set_local(host.local);
  out.set_ssh_address(host.ssh_address);
  out.set_ssh_port(static_cast<uint32_t>(host.ssh_port));
  out.set_user(host.user);
  for (const std::string& identity : host.identities) out.add_identities(FromAnywhere(identity));
  out.set_dir(host.dir);
  for (const JumpHost& jump : host.jumps) {
    record::JumpHost* const to = out.add_jumps();
    to->set_name(jump.name);
    to->set_address(jump.address);
    to->set_port(static_cast<uint32_t>(jump.port));
    to->set_user(jump.user);
    for (const std::string& identity : jump.identities) to->add_identities(FromAnywhere(identity));
  }
  return out;
}

Host HostOf(const record::Host& record) {
  Host host{.name = record.name(),
            .local = record.local(),
            .ssh_address = record.ssh_address(),
            .ssh_port = static_cast<int>(record.ssh_port()),
            .user = record.user(),
            .identities = {record.identities().begin(), record.identities().end()},
            .data_address = record.data_is_ssh() || record.local() ? "" : record.data_address(),
            .dir = record.dir()};
  for (const record::JumpHost& jump : record.jumps()) {
    host.jumps.push_back({jump.name(),
                          jump.address(),
                          static_cast<int>(jump.port()),
                          jump.user(),
                          {jump.identities().begin(), jump.identities().end()}});
  }
  return host;
}

std::vector<record::Host> AllHosts(const Inventory& inventory) {
  std::vector<record::Host> hosts;
  for (const Host& host : inventory.hosts) hosts.push_back(RecordOf(host));
  return hosts;
}

std::vector<record::Host> AllHosts(const record::JobRecord& record) {
  std::vector<record::Host> hosts(record.hosts().begin(), record.hosts().end());
  hosts.insert(hosts.end(), record.spare_hosts().begin(), record.spare_hosts().end());
  return hosts;
}

absl::StatusOr<record::Host> ResolvedRecordOf(const Host& host, TimePoint deadline) {
  record::Host out = RecordOf(host);
  MUSTER_ASSIGN_OR_RETURN(*out.mutable_data_address(), FindDataAddress(host, deadline));
  out.set_data_is_ssh(!host.local && host.data_address.empty());
  out.set_planned_address(out.data_address());
  return out;
}

// A loopback address that the inventory itself names is meant: a cluster on this machine.
absl::Status CheckReachable(const record::Host& host) {
  const std::string& address = host.data_address();
  const bool is_loopback = address.starts_with("127.") || address == "::1";
  // It holds on one link only, and its zone on one machine.
  const bool is_link_local = absl::AsciiStrToLower(address).starts_with("fe80:");
  if (!(is_loopback && host.ssh_address() != address) && !is_link_local) return absl::OkStatus();
  return InvalidArgument(
      "host %s: its address is %s, which other hosts cannot reach: give it `data: ADDRESS`", host.name(),
      host.data_address());
}

}  // namespace muster
