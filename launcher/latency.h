// How long a message takes from one host to another.
#pragma once

#include "base/clock.h"
#include "base/status.h"
#include "launcher/agent_connection.h"
#include "proto/job_record.pb.h"

namespace muster {

/// One way, in seconds: half the median of some hundred round trips of a byte over TCP between the hosts'
/// data addresses, between two processes of the agent. Takes a port of those that tasks use for as long.
/// Errors name the host.
absl::StatusOr<double> MeasureLatency(const record::Host& from, const record::Host& to,
                                      const ConnectOptions& options, TimePoint deadline);

}  // namespace muster
