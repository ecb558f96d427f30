// What ~/.ssh/config says of hosts, as far as an inventory has a word for it: HostName, Port, User,
// IdentityFile, ProxyJump. Of OpenSSH's rules (ssh_config(5)): the first value of a keyword holds, identity
// files add up, a block holds for the names its patterns match, Include reads other files in its place.
//
// `Match` by all, host, originalhost, user, localuser, final and canonical means what it means to ssh. Blocks
// that ask for anything else, such as `exec`, are skipped: whether they hold is for ssh to know. Names are
// not made full (CanonicalizeHostname): where ssh would try to, that is refused.
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
  std::vector<std::string> identities;        // without ~ and tokens; "none": none but these
  std::optional<std::vector<Endpoint>> jump;  // unset: not given; empty: none
  std::string jump_error;    // "path:line: ": a ProxyCommand that is no jump host, which muster cannot run
  std::string unknown_jump;  // "path:line: ": it may be by a jump host, which is for ssh to know
  friend bool operator==(const SshHostConfig&, const SshHostConfig&) = default;
};

/// What is known before ssh's configuration is asked, as what is given to ssh itself.
struct SshGiven {
  std::string user;
  int port = 0;
  bool has_jump = false;
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
  absl::StatusOr<SshHostConfig> For(const std::string& name, const SshGiven& given = {}) const;

 private:
  // What a Host or Match line asks for.
  struct Criterion {
    enum class Kind {
      kHostLine,
      kHost,
      kOriginalHost,
      kUser,
      kLocalUser,
      kFinal,
      kCanonical,
      kNever,
      kUnknown
    };
    Kind kind;
    std::vector<std::string> patterns = {};
    bool is_negated = false;
  };
  // A line that counts: a value, or one that begins a block, whose criteria all have to hold.
  struct Line {
    std::string keyword;  // in lower case; "": a block begins
    std::string value;
    std::string place;  // "path:line"
    std::vector<Criterion> criteria = {};
    size_t end = 0;  // of a block: the line behind it, with the files that are included in it
    bool is_value() const { return !keyword.empty(); }
  };

  // What has been found so far decides about the lines that follow.
  struct Search;

  static absl::StatusOr<std::vector<Criterion>> ParseCriteria(const std::string& keyword,
                                                              const std::vector<std::string>& words);
  static absl::Status Read(const std::filesystem::path& path, const std::string& home, int depth,
                           std::vector<Line>* lines);
  static absl::Status ReadLine(const std::string& line, const std::string& place, const std::string& home,
                               int depth, std::optional<size_t>* block, std::vector<Line>* lines);
  bool HasFinal() const;
  absl::Status Look(Search* search) const;
  absl::Status Take(const Line& line, bool is_certain, Search* search) const;

  std::string home_;
  std::string account_;  // of this process
  std::vector<Line> lines_;
};

/// The name of this process's account, which is ssh's user where nothing else is said; empty: it has none.
std::string LocalAccount();

/// The jump hosts of `[user@]host[:port][,...]`, or none of "none".
absl::StatusOr<std::vector<Endpoint>> ParseJumpHosts(const std::string& text);

/// What arguments of ssh say of where it goes, and as whom. As everywhere, the first value of each holds.
struct SshArguments {
  std::string host;  // what is no option
  std::string user;
  int port = 0;
  std::string identity;
  std::optional<std::string> jump;           // as ParseJumpHosts takes it
  std::optional<std::string> proxy_command;  // where no jump host was said before
  std::string forward;                       // of -W
};
/// InvalidArgument, without a position: words that are none, or ones that say it in another way: another file
/// of configuration, another name of the host.
absl::StatusOr<SshArguments> ParseSshArguments(const std::vector<std::string>& words);

/// The jump host that `ssh -W %h:%p HOST`, a ProxyCommand, goes through, with the user and the port that
/// options give; `user` is what %r stands for there. InvalidArgument: it is not that, or has options which
/// say more than this, or other tokens.
absl::StatusOr<Endpoint> JumpHostOfProxyCommand(const std::string& command, const std::string& user = "%r");

}  // namespace muster
