// The agent's binary, and how it comes to a host that lacks it.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "launcher/contents.h"
#include "launcher/transport/transport.h"
#include "proto/job_record.pb.h"

namespace muster {

/// The static agent binary, as it is put on hosts.
struct AgentProgram {
  std::string sha256;
  std::shared_ptr<const std::string> bytes;
  std::shared_future<std::string> packed;  // with gzip, once somebody gets it; each thread by a copy
};
absl::StatusOr<AgentProgram> LoadAgentProgram(const Installation& installation);

/// Where the agent and its files are on a host.
struct AgentPlace {
  std::string dir;      // for people: as the inventory has it
  std::string root;     // of its files, as a word for sh
  std::string program;  // likewise
};
/// The host's key, of which its folder has its name, is in the file `known_hosts` once it was connected.
absl::StatusOr<AgentPlace> AgentPlaceOf(const record::Host& host, const std::string& known_hosts,
                                        const AgentProgram& agent);

/// A host without the agent.
struct BareHost {
  std::string architecture;
  bool has_gzip = false;
};

/// For sh: becomes the agent's bridge, or says what a host this is.
std::string BridgeCommand(const AgentPlace& place);
/// What that has said; nothing, if it was the bridge.
std::optional<BareHost> FindBareHost(std::string_view output);

/// Puts the agent there, in its turn: many hosts share this machine's link. `comes_until` says that the
/// connection gets somewhere, and how long it has for the next step; a slow link takes many of them.
/// FailedPrecondition: the host has another architecture, or no room. Cancelled: `cancel_fd` became readable.
absl::Status BringAgent(Transport& transport, const AgentPlace& place, const BareHost& host,
                        const AgentProgram& agent, int cancel_fd,
                        const std::function<TimePoint()>& comes_until);

}  // namespace muster
