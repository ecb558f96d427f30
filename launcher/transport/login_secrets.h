// LoginSecrets: what logging in to hosts may need and no file has, which the person at the terminal is asked
// for once, for all connections of this process: passphrases of private keys, and a password.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

struct ssh_key_struct;

namespace muster {

/// One line from whoever sits at the terminal of this process, not shown while it is typed. Nothing: nobody
/// does, this process is not in the foreground there, or he does not answer for two minutes, or interrupts,
/// which then interrupts this process.
std::optional<std::string> AskAtTerminal(const std::string& question);

struct SshKeyDeleter {
  void operator()(ssh_key_struct* key) const;
};
using SshKey = std::unique_ptr<ssh_key_struct, SshKeyDeleter>;

/// Any thread.
class LoginSecrets {
 public:
  using Ask = std::function<std::optional<std::string>(const std::string& question)>;

  /// `password`: for hosts that take no key.
  explicit LoginSecrets(Ask ask, std::optional<std::string> password = std::nullopt)
      : ask_(std::move(ask)), password_(std::move(password)) {}
  ~LoginSecrets();

  /// Asks for the passphrase of the private key in this file, three times at most; nothing is asked if the
  /// file holds no key, or one without a passphrase, if ssh-agent has the key (`agent_socket`; empty: there
  /// is none), of a file that this was called for before, and once nobody has answered.
  void Unlock(const std::string& path, const std::string& agent_socket);

  /// The key in the file, a copy of its own; null: it is not unlocked.
  SshKey Find(const std::string& path) const;

  const std::optional<std::string>& password() const { return password_; }

 private:
  const Ask ask_;
  std::optional<std::string> password_;
  mutable std::mutex mutex_;            // guards the following; held while somebody is asked
  std::map<std::string, SshKey> keys_;  // by path; null: not unlocked
  bool has_left_ = false;               // nobody has answered
};

}  // namespace muster
