#include "launcher/transport/ssh_auth.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "launcher/transport/agent_keys.h"
#include "launcher/transport/login_secrets.h"
#include "launcher/transport/ssh_session.h"

namespace muster {
namespace {

class Authenticator {
 public:
  Authenticator(ssh_session session, const SshTarget& target, const SshOptions& options, const Limits& limits)
      : session_(session), target_(target), options_(options), limits_(limits) {}

  absl::Status Run();

 private:
  // True when logged in; false: go on with the next. An error ends it all.
  absl::StatusOr<bool> TryIdentity(const std::string& path);
  absl::StatusOr<bool> TryAgent();
  absl::StatusOr<bool> TryNothing();
  absl::StatusOr<bool> TryPassword();
  absl::StatusOr<int> AnswerPrompts(const std::string& password);
  absl::StatusOr<bool> Outcome(const std::string& what, const absl::StatusOr<int>& result);
  absl::Status Refused() const;

  ssh_session session_;
  const SshTarget& target_;
  const SshOptions& options_;
  const Limits& limits_;
  std::set<std::string> seen_;
  std::string tried_;
  bool has_offered_ = false;  // a key, or a password
};

absl::StatusOr<bool> Authenticator::Outcome(const std::string& what, const absl::StatusOr<int>& result) {
  has_offered_ = true;
  const std::string error = ssh_get_error(session_);
  if (!ssh_is_connected(session_)) {
    if (error.find("Socket error") != std::string::npos) {
      return Unavailable("login with %s: the host hung up (%s); see the log of its sshd", what, error);
    }
    // It said why: sshd allows a few keys only (MaxAuthTries).
    tried_ += "\n  " + what + ": " + error;
    return Refused();
  }
  MUSTER_RETURN_IF_ERROR(Annotate(result.status(), "login with " + what));
  if (*result == SSH_AUTH_SUCCESS) return true;
  tried_ += "\n  " + what + ": ";
  if (*result == SSH_AUTH_DENIED) {
    tried_ += "not accepted by the host";
  } else if (*result == SSH_AUTH_PARTIAL) {
    tried_ += "accepted, but the host wants a second proof, which muster has not";
  } else {
    tried_ += error;
  }
  return false;
}

// libssh lets OpenSSL ask at the terminal, without a deadline, for the passphrase of a PEM file where nobody
// answers for it.
int NoPassphrase(const char*, char*, size_t, int, int, void*) { return -1; }

absl::StatusOr<bool> Authenticator::TryIdentity(const std::string& path) {
  if (!seen_.insert(path).second) return false;
  if (::access(path.c_str(), R_OK) != 0) {
    tried_ += "\n  " + path + ": " + std::strerror(errno);
    return false;
  }
  SshKey key = options_.secrets == nullptr ? nullptr : options_.secrets->Find(path);
  ssh_key raw = nullptr;
  if (!key && ssh_pki_import_privkey_file(path.c_str(), nullptr, NoPassphrase, nullptr, &raw) == SSH_OK) {
    key.reset(raw);
  }
  if (!key && path.ends_with(".pub")) {
    tried_ += "\n  " + path + ": this is the public half: name the file without .pub";
    return false;
  }
  if (!key) {
    tried_ +=
        "\n  " + path +
        ": not a private key, or it has a passphrase (at a terminal muster asks for it; else give it to "
        "the agent: ssh-add " +
        path + ")";
    return false;
  }
  return Outcome(path, DriveSession(session_, SSH_AUTH_AGAIN, limits_,
                                    [&] { return ssh_userauth_publickey(session_, nullptr, key.get()); }));
}

absl::StatusOr<bool> Authenticator::TryAgent() {
  if (options_.agent_socket.empty()) {
    tried_ += "\n  ssh-agent: none (SSH_AUTH_SOCK is not set)";
    return false;
  }
  absl::StatusOr<UniqueFd> agent = ConnectAgent(options_.agent_socket);
  if (!agent.ok()) {
    tried_ += "\n  ssh-agent: " + std::string(agent.status().message());
    return false;
  }
  std::vector<std::string> named;
  for (const std::string& identity : target_.identities) {
    if (identity != kNoIdentity) named.push_back(PublicBlobOf(ExpandHome(identity, options_.home)));
  }
  const auto front = AgentFront::Start(*std::move(agent), std::move(named), limits_);
  if (!front.ok()) {
    tried_ += "\n  ssh-agent: " + std::string(front.status().message());
    return false;
  }
  UniqueFd socket = (*front)->TakeSocket();
  if (ssh_set_agent_socket(session_, socket.get()) != SSH_OK)
    return Internal("ssh-agent: %s", ssh_get_error(session_));
  (void)socket.release();  // the session's from here on
  const absl::StatusOr<int> result =
      DriveSession(session_, SSH_AUTH_AGAIN, limits_, [&] { return ssh_userauth_agent(session_, nullptr); });
  if (result.ok() && *result != SSH_AUTH_SUCCESS && Now() >= limits_.deadline) {
    return DeadlineExceeded(
        "login with ssh-agent: no answer before the deadline; does it wait for a confirmation?");
  }
  return Outcome("the keys in ssh-agent", result);
}

// As the host asks, which may be PAM: each question that is not echoed is one for the password.
absl::StatusOr<int> Authenticator::AnswerPrompts(const std::string& password) {
  constexpr int kMostRounds = 5;
  const auto ask = [&] {
    return DriveSession(session_, SSH_AUTH_AGAIN, limits_,
                        [&] { return ssh_userauth_kbdint(session_, nullptr, nullptr); });
  };
  absl::StatusOr<int> result = ask();
  for (int round = 0; round < kMostRounds && result.ok() && *result == SSH_AUTH_INFO; ++round) {
    for (int i = 0; i < ssh_userauth_kbdint_getnprompts(session_); ++i) {
      char is_shown = 0;
      (void)ssh_userauth_kbdint_getprompt(session_, static_cast<unsigned>(i), &is_shown);
      if (ssh_userauth_kbdint_setanswer(session_, static_cast<unsigned>(i),
                                        is_shown != 0 ? "" : password.c_str()) < 0) {
        return Internal("%s", ssh_get_error(session_));
      }
    }
    result = ask();
  }
  return result;
}

// Where no key was tried the host has not said yet what it takes.
absl::StatusOr<bool> Authenticator::TryNothing() {
  if (ssh_userauth_list(session_, nullptr) != 0) return false;
  const std::string tried = tried_;
  const bool had_offered = has_offered_;
  MUSTER_ASSIGN_OR_RETURN(const bool done,
                          Outcome("nothing", DriveSession(session_, SSH_AUTH_AGAIN, limits_, [&] {
                                    return ssh_userauth_none(session_, nullptr);
                                  })));
  tried_ = tried;
  has_offered_ = had_offered;
  return done;
}

absl::StatusOr<bool> Authenticator::TryPassword() {
  const std::optional<std::string> none;
  const auto& password = options_.secrets == nullptr ? none : options_.secrets->password();
  if (!password) return false;
  const int methods = ssh_userauth_list(session_, nullptr);
  if ((methods & SSH_AUTH_METHOD_PASSWORD) != 0) {
    return Outcome("the password", DriveSession(session_, SSH_AUTH_AGAIN, limits_, [&] {
                     return ssh_userauth_password(session_, nullptr, password->c_str());
                   }));
  }
  if ((methods & SSH_AUTH_METHOD_INTERACTIVE) != 0) return Outcome("the password", AnswerPrompts(*password));
  tried_ += "\n  the password: the host takes none";
  return false;
}

absl::Status Authenticator::Refused() const {
  const bool takes_password =
      ssh_is_connected(session_) != 0 &&
      (ssh_userauth_list(session_, nullptr) & (SSH_AUTH_METHOD_PASSWORD | SSH_AUTH_METHOD_INTERACTIVE)) != 0;
  const bool has_password = options_.secrets != nullptr && options_.secrets->password();
  const std::string advice =
      has_offered_
          ? absl::StrFormat("Add your public key to ~/.ssh/authorized_keys there: ssh-copy-id -p %d %s%s",
                            target_.port, target_.user.empty() ? "" : target_.user + "@", target_.address)
          : "No key could be offered: name one with `identity:`, or make one with ssh-keygen";
  return WithNeedsUser(Unavailable(
      "login as %s failed; tried:%s\n%s%s", target_.user.empty() ? "yourself" : target_.user, tried_, advice,
      takes_password && !has_password ? " (or give its password: --ask-password)" : ""));
}

absl::Status Authenticator::Run() {
  bool has_default = true;
  for (const std::string& identity : target_.identities) {
    if (identity == kNoIdentity) has_default = false;
    if (identity == kNoIdentity) continue;
    MUSTER_ASSIGN_OR_RETURN(const bool done, TryIdentity(ExpandHome(identity, options_.home)));
    if (done) return absl::OkStatus();
  }
  MUSTER_ASSIGN_OR_RETURN(const bool done, TryAgent());
  if (done) return absl::OkStatus();
  for (const std::string& path :
       has_default ? DefaultIdentities(options_.home) : std::vector<std::string>()) {
    MUSTER_ASSIGN_OR_RETURN(const bool done, TryIdentity(path));
    if (done) return absl::OkStatus();
  }
  MUSTER_ASSIGN_OR_RETURN(bool is_in, TryNothing());
  if (!is_in) {
    MUSTER_ASSIGN_OR_RETURN(is_in, TryPassword());
  }
  return is_in ? absl::OkStatus() : Refused();
}

}  // namespace

std::vector<std::string> DefaultIdentities(const std::string& home) {
  std::vector<std::string> paths;
  for (const char* name : {"id_ed25519", "id_ecdsa", "id_rsa"}) {
    const std::string path = home + "/.ssh/" + name;
    if (::access(path.c_str(), F_OK) == 0) paths.push_back(path);
  }
  return paths;
}

std::string ExpandHome(const std::string& path, const std::string& home) {
  return path.starts_with("~/") ? home + path.substr(1) : path;
}

absl::Status Authenticate(ssh_session session, const SshTarget& target, const SshOptions& options,
                          const Limits& limits) {
  return Authenticator(session, target, options, limits).Run();
}

}  // namespace muster
