// What ~/.ssh/config says of hosts, as far as an inventory has a word for it: HostName, Port, User,
// IdentityFile, ProxyJump. Of OpenSSH's rules (ssh_config(5)): the first value of a keyword holds, identity
// files add up, a block holds for the names its patterns match, Include reads other files in its place.
//
// Blocks of `Match` other than `all`, `host` and `originalhost`, which are compared with the name that was
// given, are skipped: what they ask for is for ssh to know.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "inventory/address.h"

namespace muster {

struct SshHostConfig {
  std::string host_name;  // "": not given, as everywhere here
  int port = 0;           // 0: not given
  std::string user;
  std::vector<std::string> identities;        // without ~ and tokens
  std::optional<std::vector<Endpoint>> jump;  // unset: not given; empty: none
  std::string jump_error;  // "path:line: ": a ProxyCommand that is no jump host, which muster cannot run
  friend bool operator==(const SshHostConfig&, const SshHostConfig&) = default;
};

/// Immutable; any thread.
class SshConfig {
 public:
  /// A file that is missing is an empty one. `home` is for "~", %d and relative names in Include.
  /// InvalidArgument, "path:line: ": a line without a value, a quote that is not closed where hosts or files
  /// are named, Include without end.
  static absl::StatusOr<SshConfig> Load(const std::filesystem::path& path, const std::string& home);

  /// For the name or address that somebody would give ssh. InvalidArgument, "path:line: ": a value of these
  /// keywords that ssh would refuse.
  absl::StatusOr<SshHostConfig> For(const std::string& name) const;

 private:
  // A line, with all that decides whether it holds.
  struct Line {
    std::vector<std::vector<std::string>>
        patterns;         // of each block it is in, included files' in including ones'
    std::string keyword;  // in lower case
    std::string value;
    std::string place;  // "path:line"
  };

  static absl::Status Read(const std::filesystem::path& path, const std::string& home, int depth,
                           const std::vector<std::vector<std::string>>& outer, std::vector<Line>* lines);

  std::string home_;
  std::vector<Line> lines_;
};

/// The jump hosts of `[user@]host[:port][,...]`, or none of "none".
absl::StatusOr<std::vector<Endpoint>> ParseJumpHosts(const std::string& text);

/// The jump host that `ssh -W %h:%p HOST`, a ProxyCommand, goes through, with the user and the port that
/// options give. InvalidArgument: it is not that, or has options which say more than this.
absl::StatusOr<Endpoint> JumpHostOfProxyCommand(const std::string& command);

}  // namespace muster
