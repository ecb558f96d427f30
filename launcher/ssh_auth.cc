#include "launcher/ssh_auth.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "launcher/ssh_session.h"

namespace muster {
namespace {

struct KeyDeleter {
  void operator()(ssh_key key) const { ssh_key_free(key); }
};
using Key = std::unique_ptr<ssh_key_struct, KeyDeleter>;

// Ends the waits on a socket by shutting it down when the deadline passes or the user interrupts, from a
// thread of its own: libssh talks to the agent in blocking mode, and an agent may wait for a person to touch
// a token.
class SocketGuard {
 public:
  static absl::StatusOr<std::unique_ptr<SocketGuard>> Start(int socket, const Limits& limits) {
    UniqueFd own(::fcntl(socket, F_DUPFD_CLOEXEC, 0));
    int ends[2];
    if (!own.valid() || ::pipe2(ends, O_CLOEXEC) != 0) return ErrnoError(errno, "ssh-agent");
    return std::unique_ptr<SocketGuard>(
        new SocketGuard(std::move(own), UniqueFd(ends[0]), UniqueFd(ends[1]), limits));
  }
  ~SocketGuard() { finished_write_.reset(); }  // ends the thread, which is joined after this

 private:
  SocketGuard(UniqueFd socket, UniqueFd finished_read, UniqueFd finished_write, const Limits& limits)
      : socket_(std::move(socket)),
        finished_read_(std::move(finished_read)),
        finished_write_(std::move(finished_write)),
        thread_([this, limits] {
          if (!WaitForFd(finished_read_.get(), POLLIN, limits).ok()) ::shutdown(socket_.get(), SHUT_RDWR);
        }) {}

  const UniqueFd socket_;
  const UniqueFd finished_read_;
  UniqueFd finished_write_;
  std::jthread thread_;
};

absl::StatusOr<UniqueFd> ConnectAgent(const std::string& path) {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  if (path.size() >= sizeof address.sun_path) return InvalidArgument("its path is too long");
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return ErrnoError(errno, "socket");
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return ErrnoError(errno, path);
  }
  return fd;
}

class Authenticator {
 public:
  Authenticator(ssh_session session, const SshTarget& target, const SshOptions& options, const Limits& limits)
      : session_(session), target_(target), options_(options), limits_(limits) {}

  absl::Status Run();

 private:
  // True when logged in; false: go on with the next. An error ends it all.
  absl::StatusOr<bool> TryIdentity(const std::string& path);
  absl::StatusOr<bool> TryAgent();
  absl::StatusOr<bool> Outcome(const std::string& what, const absl::StatusOr<int>& result);
  absl::Status Refused() const;

  ssh_session session_;
  const SshTarget& target_;
  const SshOptions& options_;
  const Limits& limits_;
  std::set<std::string> seen_;
  std::string tried_;
};

absl::StatusOr<bool> Authenticator::Outcome(const std::string& what, const absl::StatusOr<int>& result) {
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

absl::StatusOr<bool> Authenticator::TryIdentity(const std::string& path) {
  if (!seen_.insert(path).second) return false;
  if (::access(path.c_str(), R_OK) != 0) {
    tried_ += "\n  " + path + ": " + std::strerror(errno);
    return false;
  }
  ssh_key raw = nullptr;
  if (ssh_pki_import_privkey_file(path.c_str(), nullptr, nullptr, nullptr, &raw) != SSH_OK) {
    tried_ += "\n  " + path +
              ": not a private key, or it has a passphrase (then give it to the agent: ssh-add " + path + ")";
    return false;
  }
  const Key key(raw);
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
  MUSTER_ASSIGN_OR_RETURN(const std::unique_ptr<SocketGuard> guard,
                          SocketGuard::Start(agent->get(), limits_));
  if (ssh_set_agent_socket(session_, agent->get()) != SSH_OK)
    return Internal("ssh-agent: %s", ssh_get_error(session_));
  (void)agent->release();  // the session's from here on
  const absl::StatusOr<int> result =
      DriveSession(session_, SSH_AUTH_AGAIN, limits_, [&] { return ssh_userauth_agent(session_, nullptr); });
  if (result.ok() && *result != SSH_AUTH_SUCCESS && Now() >= limits_.deadline) {
    return DeadlineExceeded(
        "login with ssh-agent: no answer before the deadline; does it wait for a confirmation?");
  }
  return Outcome("the keys in ssh-agent", result);
}

absl::Status Authenticator::Refused() const {
  return WithNeedsUser(
      Unavailable("login as %s failed; tried:%s\nAdd your public key to ~/.ssh/authorized_keys there: "
                  "ssh-copy-id -p %d %s%s",
                  target_.user.empty() ? "yourself" : target_.user, tried_, target_.port,
                  target_.user.empty() ? "" : target_.user + "@", target_.address));
}

absl::Status Authenticator::Run() {
  for (const std::string& identity : target_.identities) {
    MUSTER_ASSIGN_OR_RETURN(const bool done, TryIdentity(ExpandHome(identity, options_.home)));
    if (done) return absl::OkStatus();
  }
  MUSTER_ASSIGN_OR_RETURN(const bool done, TryAgent());
  if (done) return absl::OkStatus();
  for (const char* name : {"id_ed25519", "id_ecdsa", "id_rsa"}) {
    const std::string path = options_.home + "/.ssh/" + name;
    if (::access(path.c_str(), F_OK) != 0) continue;
    MUSTER_ASSIGN_OR_RETURN(const bool done, TryIdentity(path));
    if (done) return absl::OkStatus();
  }
  return Refused();
}

}  // namespace

std::string ExpandHome(const std::string& path, const std::string& home) {
  return path.starts_with("~/") ? home + path.substr(1) : path;
}

absl::Status Authenticate(ssh_session session, const SshTarget& target, const SshOptions& options,
                          const Limits& limits) {
  return Authenticator(session, target, options, limits).Run();
}

}  // namespace muster
