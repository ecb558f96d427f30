// From a host of a job's record to a connection to it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"
#include "launcher/transport/local_transport.h"
#include "launcher/transport/shared_transport.h"
#include "launcher/transport/ssh_transport.h"
#include "launcher/transport/transport.h"
#include "proto/job_record.pb.h"

namespace muster {

struct AgentProgram;

struct ConnectOptions {
  SshOptions ssh;
  const AgentProgram* agent = nullptr;  // for AgentConnection only
  // How commands run on hosts that are local, by their names. Those that are not in it are this account on
  // this machine.
  std::map<std::string, LocalOptions> local_hosts = {};
  // Called once an AgentConnection has logged in: what follows has as much time again.
  std::function<void()> on_login = {};
  // Through which commands go where that is possible; for OpenTransport only. Null: none.
  std::shared_ptr<const LentConnections> lent = nullptr;
};

/// Where the host is reached, as far as that is known without asking: what two records of one host share.
std::string PlaceOf(const record::Host& host);

/// A connection to the host, by SSH or on this machine, without an agent. Where others' may be used, it is
/// made only when a command needs it, in as much time as there is now.
absl::StatusOr<std::unique_ptr<Transport>> OpenTransport(const record::Host& host,
                                                         const ConnectOptions& options, TimePoint deadline);

}  // namespace muster
