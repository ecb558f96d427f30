// The inventory: which machines there are, and how each is reached.
//
//     defaults: {user: train, identity: ~/.ssh/id_ed25519}
//     hosts:
//       ps-[01:02]: {labels: [cpu]}
//       gpu-01: {ssh: 10.0.0.21:22, data: 192.168.1.21, labels: [gpu], jump: [me@bastion.example.org, gate]}
//       here: {local: true}
//     search: [10.0.0.0/24]
//     discover: {command: ./hosts.sh, every: 10s}    # may name other hosts, too
//
// Hostfiles of MPI and Ansible's inventories are read too (host_list.h, ansible_yaml.h).
//
// What a host does not say comes from `defaults`; a list in the host replaces the one there. Values are
// checked as far as a file can be: nothing is resolved, opened or contacted.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "inventory/address.h"
#include "inventory/position.h"
#include "inventory/ssh_config.h"

namespace muster {

inline constexpr int kMostSlots = 65536;

/// A host on the way to others. One of the inventory, with what that says, or any other.
struct JumpHost {
  std::string
      name;  // host keys are known under it; of another one its address, as [address]:port if not port 22
  std::string address;
  int port = kDefaultSshPort;
  // As Host's. Of another one, if not given, those of the host behind, but for the ways that ssh's
  // configuration or arguments name: there it is as with a host that says nothing of them.
  std::string user;
  std::vector<std::string> identities;
  friend bool operator==(const JumpHost&, const JumpHost&) = default;
};

struct Host {
  std::string name;    // unique in the inventory; host keys are known under it
  bool local = false;  // this machine, without SSH; then the next seven mean nothing

  std::string ssh_address;  // name or IP address, IPv6 without brackets
  int ssh_port = kDefaultSshPort;
  std::string user;                     // empty: whoever runs muster
  std::vector<std::string> identities;  // private key files here; empty: the SSH agent and the usual files
  std::optional<std::vector<Endpoint>> jump;  // to go through, as written, the nearest first; unset: not said
  bool is_jump_of_ssh = false;  // `jump`, if there is one, is what ssh's configuration or arguments say
  std::vector<JumpHost> jumps;  // to go through, all of them, the nearest first

  std::string data_address;  // IP address other hosts reach its tasks at; empty: not given
  std::vector<std::string> labels;
  std::optional<std::vector<int>> gpus;  // device indices; unset: all it has
  int slots = 1;                         // its share of a job's tasks
  std::string dir = "~/.muster";         // on the host, where "~" is its user's home
  SourcePosition position;               // of its name, or of the range that made it
};

struct Discovery {
  std::vector<std::string> command;  // argv, run in the folder of the inventory
  std::chrono::milliseconds every{10'000};
  SourcePosition position;  // of `discover`
};

struct Inventory {
  std::string path;
  std::vector<Host> hosts;  // in the order of the file, ranges expanded; none only with `discover`
  // Where a host that moved may be found again: no two have an address in common; 65536 at most.
  std::vector<AddressBlock> search;
  std::optional<Discovery> discover;
};

/// Reads and checks the whole file. `home` is what "~" stands for on this machine ($HOME). What the inventory
/// does not say of a host or jump host, ~/.ssh/config may say of its SSH address. InvalidArgument, with
/// "path:line:column: ", for the first thing that is wrong: unknown or duplicate keys, wrong types, values
/// out of range, two hosts with one name, two names for one machine (the same jump, address and port), jump
/// hosts that lead in a circle. A host whose `jump` is itself, by `defaults`, is reached directly.
///
/// `discovered`: hosts by name, behind those of the file, with its `defaults`. Those that the file lists, by
/// name or place, are no others. InvalidArgument also for a name that hosts have not, and for two that are
/// discovered at one place.
absl::StatusOr<Inventory> ReadInventory(const std::filesystem::path& path, const std::string& home,
                                        const std::map<std::string, Endpoint>& discovered = {});

/// The same for text that is already read; `path` is for messages and the paths relative to it. `config`: of
/// ssh.
absl::StatusOr<Inventory> ParseInventory(std::string_view text, const std::string& path,
                                         const std::string& home, const SshConfig& config = {},
                                         const std::map<std::string, Endpoint>& discovered = {});

}  // namespace muster
