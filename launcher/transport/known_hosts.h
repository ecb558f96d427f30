// The file of host keys that muster trusts: OpenSSH's known_hosts lines, under the names of the inventory.
//
// It is muster's own file and ~/.ssh/known_hosts is not read: there keys stand under addresses and aliases,
// and a host that moves must keep its key. Lines are `name[,name...] type base64 [comment]`, blank, or
// comments; names may be hashed, as `ssh-keygen -H` does it, and are the same in capitals. Patterns and
// markers are refused with their place rather than skipped, because skipping one could mean trusting less, or
// more, than its author wrote.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace muster {

struct HostKey {
  std::string type;    // "ssh-ed25519"
  std::string base64;  // of the key in SSH's wire format

  bool operator==(const HostKey&) const = default;

  /// "SHA256:..." as ssh prints it, or "" if the base64 is not valid.
  std::string Fingerprint() const;
};

enum class HostKeyVerdict { kKnown, kUnknown, kChanged };

/// A snapshot of the file. Immutable; any thread.
class KnownHosts {
 public:
  /// A missing file is an empty one. InvalidArgument ("path:line: ...") for a line that cannot be understood.
  static absl::StatusOr<KnownHosts> Load(const std::filesystem::path& path);
  static absl::StatusOr<KnownHosts> Parse(const std::string& text, const std::string& path);

  std::vector<HostKey> KeysOf(const std::string& name) const;

  /// kChanged also when the host is known by keys of other types only: a host does not lose its keys by
  /// itself.
  HostKeyVerdict Check(const std::string& name, const HostKey& key) const;

 private:
  struct Entry {
    std::string name;        // empty: it is hashed
    std::string salt, hash;  // HMAC-SHA1 of the name, by the salt
    HostKey key;
  };
  static bool Names(const Entry& entry, const std::string& name);
  std::vector<Entry> entries_;
};

/// Trusts `key` for `name` from now on: writes a new file in place of the old one, under a lock beside it
/// (`path`.lock) that other processes and threads respect. A name with the same key already is fine. A name
/// with another key is never touched: FailedPrecondition. Waits for the lock until `deadline`.
absl::Status AcceptHostKey(const std::filesystem::path& path, const std::string& name, const HostKey& key,
                           TimePoint deadline);

/// Why AcceptHostKey could not write, as far as that is known without a key: makes the file's folder and its
/// lock.
absl::Status CheckCanAccept(const std::filesystem::path& path);

}  // namespace muster
