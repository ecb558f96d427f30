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
#include "launcher/content_relay.h"
#include "launcher/contents.h"
#include "launcher/event_queue.h"
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
  bool can_fetch = false;  // it has what it takes to get the agent from another host
};

/// For sh: becomes the agent's bridge, or says what a host this is.
std::string BridgeCommand(const AgentPlace& place);
/// What that has said; nothing, if it was the bridge.
std::optional<BareHost> FindBareHost(std::string_view output);

/// The other hosts from which one gets the agent.
struct AgentSources {
  ContentRelay* relay = nullptr;               // null: there are none
  EventQueue<RelayOrder>* orders = nullptr;    // of the relay for this host, about the agent
  std::function<void(UploadStep)> progress{};  // may be none
};

/// Puts the agent there, by the launcher or another host, as the relay says. The launcher does it in turns:
/// many hosts share this machine's link. `comes_until` says that the connection gets somewhere, and how long
/// it has for the next step; a slow link takes many of them. The relay is not told that the host has it: it
/// may not run there. FailedPrecondition: the host has another architecture, or no room. Cancelled:
/// `cancel_fd` became readable.
absl::Status BringAgent(Transport& transport, const AgentPlace& place, const BareHost& host,
                        const AgentProgram& agent, const AgentSources& sources, int cancel_fd,
                        const std::function<TimePoint()>& comes_until);

}  // namespace muster
