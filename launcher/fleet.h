// The same question to many hosts at once.
#pragma once

#include <functional>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "launcher/agent_connection.h"
#include "proto/job_record.pb.h"

namespace muster {

/// Calls `work` on so many threads of its own, or half as many as this account may have, and returns when all
/// of them have. Where that is none, `work` is called on this one.
void OnThreads(size_t count, const std::function<void()>& work);

/// Calls `ask(index)` for each, at most `at_once` of them at a time, as OnThreads does. The statuses are in
/// the order of the hosts. A host that does not answer holds up no other where there are threads for all.
std::vector<absl::Status> OnEachHost(size_t count, size_t at_once,
                                     const std::function<absl::Status(size_t)>& ask);

/// Connects to all hosts at once (of which so many log in at a time: transport/ssh_transport.h) and calls
/// `ask(index, connection)` as OnEachHost does. The statuses are those of the connection or of `ask`.
std::vector<absl::Status> AskHosts(const std::vector<record::Host>& hosts, const ConnectOptions& options,
                                   Duration connect_timeout,
                                   const std::function<absl::Status(size_t, AgentConnection&)>& ask);

/// The first failure that is not OK, or OK: what a command exits with.
absl::Status FirstFailure(const std::vector<absl::Status>& statuses);

}  // namespace muster
