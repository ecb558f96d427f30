// For tests: what becomes of attempts to connect by SSH.
#pragma once

#include <string>

#include "base/clock.h"
#include "launcher/transport/ssh_transport.h"

namespace muster {

inline TimePoint Soon() { return Now() + std::chrono::seconds(60); }

inline std::string Message(const absl::Status& status) { return std::string(status.message()); }

inline absl::Status ConnectStatus(const SshTarget& target, const SshOptions& options,
                                  TimePoint deadline = Soon()) {
  return SshTransport::Connect(target, options, deadline).status();
}

}  // namespace muster
