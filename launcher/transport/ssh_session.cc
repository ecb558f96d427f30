#include "launcher/transport/ssh_session.h"

#include <fcntl.h>
#include <libssh/server.h>  // ssh_send_keepalive, which clients have too
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "base/random.h"
#include "launcher/transport/known_hosts.h"
#include "launcher/transport/ssh_auth.h"
#include "launcher/transport/ssh_gateway.h"
#include "launcher/transport/turns.h"

namespace muster {
namespace {

// AES-GCM runs in the processor's own instructions at several GB/s and needs no separate MAC; chacha20 is for
// hosts without them.
constexpr char kCiphers[] =
    "aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,aes128-ctr,aes256-ctr,"
    "aes192-ctr";
// curve25519 first: a connection's cost is its key exchange.
constexpr char kKeyExchanges[] =
    "curve25519-sha256,curve25519-sha256@libssh.org,ecdh-sha2-nistp256,ecdh-sha2-nistp384,ecdh-sha2-nistp521,"
    "diffie-hellman-group16-sha512,diffie-hellman-group18-sha512,diffie-hellman-group14-sha256";
constexpr int kLoginsAtATime = 32;  // each keeps a processor busy at both ends
constexpr std::chrono::milliseconds kFirstPause{50};
constexpr std::chrono::milliseconds kLongestPause{2000};
constexpr const char* kHostKeyTypes[] = {"ssh-ed25519",         "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384",
                                         "ecdsa-sha2-nistp521", "rsa-sha2-512",        "rsa-sha2-256"};

// The host is asked for a key of a type that is known; it may have several keys. The other types stay at the
// end, so that a host which has replaced its key by one of another type gets as far as being told apart.
std::string HostKeyPreference(const std::vector<HostKey>& known) {
  std::vector<std::string> order;
  for (const HostKey& key : known) {
    if (key.type == "ssh-rsa") {
      order.insert(order.end(), {"rsa-sha2-512", "rsa-sha2-256"});
    } else {
      order.push_back(key.type);
    }
  }
  order.insert(order.end(), std::begin(kHostKeyTypes), std::end(kHostKeyTypes));
  std::string list;
  for (size_t i = 0; i < order.size(); ++i) {
    if (std::find(order.begin(), order.begin() + i, order[i]) != order.begin() + i) continue;
    list += (list.empty() ? "" : ",") + order[i];
  }
  return list;
}

absl::Status SetOptions(ssh_session session, const std::string& user, const std::vector<HostKey>& known,
                        int fd) {
  const int no = 0, yes = 1;
  const struct {
    ssh_options_e option;
    const void* value;
    const char* name;
  } settings[] = {
      // What stands in ~/.ssh/config is the inventory's business, and host keys are checked here, not by
      // libssh. So it is not told a host, which it would refuse if it were not a host name ("gpu_01").
      {SSH_OPTIONS_PROCESS_CONFIG, &no, "config"},
      {SSH_OPTIONS_KNOWNHOSTS, "/dev/null", "known hosts"},
      {SSH_OPTIONS_GLOBAL_KNOWNHOSTS, "/dev/null", "known hosts"},
      {SSH_OPTIONS_FD, &fd, "socket"},
      {SSH_OPTIONS_NODELAY, &yes, "nodelay"},
      {SSH_OPTIONS_CIPHERS_C_S, kCiphers, "ciphers"},
      {SSH_OPTIONS_CIPHERS_S_C, kCiphers, "ciphers"},
      {SSH_OPTIONS_KEY_EXCHANGE, kKeyExchanges, "key exchange"},
  };
  for (const auto& setting : settings) {
    if (ssh_options_set(session, setting.option, setting.value) != SSH_OK) {
      return Internal("libssh: option %s: %s", setting.name, ssh_get_error(session));
    }
  }
  if (!user.empty() && ssh_options_set(session, SSH_OPTIONS_USER, user.c_str()) != SSH_OK) {
    return InvalidArgument("user %s: %s", user, ssh_get_error(session));
  }
  if (ssh_options_set(session, SSH_OPTIONS_HOSTKEYS, HostKeyPreference(known).c_str()) != SSH_OK) {
    return Internal("libssh: option host key types: %s", ssh_get_error(session));
  }
  ssh_set_blocking(session, 0);
  return absl::OkStatus();
}

const Turns& LoginTurns() {
  static const Turns turns(kLoginsAtATime, "the logins to other hosts", std::chrono::minutes(10));
  return turns;
}

// The host speaks first, so one that says nothing is waited for without a turn, which others can use. The
// time in the queue is not the host's.
absl::StatusOr<Turns::Turn> WaitForGreeting(int fd, Limits& limits,
                                            const std::function<void()>& waiting = nullptr) {
  const absl::Status greeted = WaitForFd(fd, POLLIN, limits);
  if (absl::IsDeadlineExceeded(greeted)) {
    return DeadlineExceeded(
        "waiting for the SSH greeting: accepted the connection but said nothing before the deadline; check "
        "that sshd listens there and that the host is not overloaded");
  }
  MUSTER_RETURN_IF_ERROR(greeted);
  const TimePoint queued = Now();
  auto turn = LoginTurns().Take(limits.cancel_fd, waiting);
  limits.deadline += Now() - queued;
  return turn;
}

absl::Status ExchangeKeys(ssh_session session, const Limits& limits, bool& dropped) {
  const absl::StatusOr<int> result =
      DriveSession(session, SSH_AGAIN, limits, [&] { return ssh_connect(session); });
  if (result.ok() && *result == SSH_OK) return absl::OkStatus();
  const bool greeted = ssh_get_serverbanner(session) != nullptr;
  if (absl::IsCancelled(result.status())) return result.status();
  if (absl::IsDeadlineExceeded(result.status())) {
    return DeadlineExceeded(
        "key exchange: no answer before the deadline; check the host's load, and whether large packets are "
        "lost on the way (MTU)");
  }
  const std::string why = ssh_get_error(session);
  dropped = !greeted || !result.ok() || why.find("Socket error") != std::string::npos;
  if (!greeted) {
    return Unavailable(
        "waiting for the SSH greeting: the host hung up (%s); sshd does that when many connections begin "
        "together (MaxStartups) or when it punishes an address: see its log",
        why);
  }
  if (dropped) return Unavailable("key exchange: the host hung up (%s); see the log of its sshd", why);
  return WithNeedsUser(
      Unavailable("key exchange: %s; the host's sshd is too old or configured to exclude this client", why));
}

absl::StatusOr<HostKey> KeyOfServer(ssh_session session) {
  ssh_key key = nullptr;
  char* base64 = nullptr;
  if (ssh_get_server_publickey(session, &key) != SSH_OK)
    return Internal("libssh: %s", ssh_get_error(session));
  const char* type = ssh_key_type_to_char(ssh_key_type(key));
  HostKey result;
  if (type != nullptr && ssh_pki_export_pubkey_base64(key, &base64) == SSH_OK) result = {type, base64};
  ssh_string_free_char(base64);
  ssh_key_free(key);
  if (result.base64.empty()) return Internal("libssh: the host's key cannot be exported");
  return result;
}

absl::Status CheckHostKey(const SshTarget& target, const SshOptions& options, const KnownHosts& known,
                          const HostKey& key, const Limits& limits, std::vector<AcceptedKey>& accepted) {
  const std::string file = options.known_hosts.string();
  switch (known.Check(target.name, key)) {
    case HostKeyVerdict::kKnown:
      return absl::OkStatus();
    case HostKeyVerdict::kChanged: {
      std::string expected;
      for (const HostKey& old : known.KeysOf(target.name))
        expected += " " + old.type + " " + old.Fingerprint();
      return WithOtherMachine(WithNeedsUser(Unavailable(
          "its host key has CHANGED: this may be another machine, or someone in between. Nothing was sent.\n"
          "  expected:%s (in %s)\n  offered: %s %s\nIf the change is meant: ssh-keygen -R %s -f %s && %s",
          expected, file, key.type, key.Fingerprint(), target.name, file, options.accept_command)));
    }
    case HostKeyVerdict::kUnknown:
      break;
  }
  if (!options.accept_new_keys) {
    return WithNeedsUser(
        Unavailable("its host key is not known (%s %s). Compare the fingerprint, then accept it with: %s",
                    key.type, key.Fingerprint(), options.accept_command));
  }
  MUSTER_RETURN_IF_ERROR(AcceptHostKey(options.known_hosts, target.name, key, limits.deadline));
  accepted.push_back({target.name, key.Fingerprint()});
  return absl::OkStatus();
}

// libssh makes its socket blocking once it is connected (socket.c, POLLOUT while connecting). A full send
// buffer would then hold a write, and with it the thread, for as long as the host likes.
absl::Status MakeSocketNonBlocking(ssh_session session) {
  const int fd = ssh_get_fd(session);
  if (::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK) != 0) return ErrnoError(errno, "fcntl");
  return absl::OkStatus();
}

// Makes a session of a connection on which the host has greeted, up to knowing its key.
absl::Status Begin(UniqueFd fd, const std::string& user, const std::vector<HostKey>& known,
                   const Limits& limits, SshLogin& login) {
  login.session.reset(ssh_new());
  MUSTER_CHECK(login.session != nullptr);
  ssh_session session = login.session.get();
  MUSTER_RETURN_IF_ERROR(SetOptions(session, user, known, fd.get()));
  (void)fd.release();  // the session's from here on
  MUSTER_RETURN_IF_ERROR(ExchangeKeys(session, limits, login.dropped));
  MUSTER_RETURN_IF_ERROR(MakeSocketNonBlocking(session));
  MUSTER_ASSIGN_OR_RETURN(login.key, KeyOfServer(session));
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> Reach(const SshTarget& target, const SshOptions& options, Limits& limits,
                               SshLogin& login) {
  if (target.jumps.empty()) return ConnectTcp(target.address, target.port, options.silence_limit, limits);
  SshGateways own;
  SshGateways& gateways = options.gateways != nullptr ? *options.gateways : own;
  for (;;) {
    bool is_new = false;
    login.gateway = gateways.Get(target.jumps, options, limits.deadline, &is_new);
    absl::StatusOr<UniqueFd> fd = login.gateway->Open(target.address, target.port, limits, options.on_coming);
    // Somebody else's login may have had less time than this one has.
    const bool may_try = !is_new && !login.gateway->works() && !NeedsUser(fd.status());
    if (fd.ok() || !may_try || Now() >= limits.deadline) return fd;
  }
}

// One attempt.
absl::Status TryToLogIn(const SshTarget& target, const SshOptions& options, Limits limits, SshLogin& login) {
  MUSTER_ASSIGN_OR_RETURN(const KnownHosts known, KnownHosts::Load(options.known_hosts));
  MUSTER_ASSIGN_OR_RETURN(UniqueFd fd, Reach(target, options, limits, login));
  MUSTER_ASSIGN_OR_RETURN(const Turns::Turn turn, WaitForGreeting(fd.get(), limits, options.on_coming));
  MUSTER_RETURN_IF_ERROR(Begin(std::move(fd), target.user, known.KeysOf(target.name), limits, login));
  MUSTER_RETURN_IF_ERROR(CheckHostKey(target, options, known, login.key, limits, login.accepted));
  MUSTER_RETURN_IF_ERROR(Authenticate(login.session.get(), target, options, limits));
  if (login.gateway != nullptr) {
    for (AcceptedKey& key : login.gateway->TakeAcceptedKeys()) login.accepted.push_back(std::move(key));
  }
  return absl::OkStatus();
}

}  // namespace

// Since 0.10 libssh forgets a socket that it was given, and closes it only if it fails. Whether it has closed
// this one does not show, and the number may be another thread's by then: what is behind it says so.
void SshSessionDeleter::operator()(ssh_session session) const {
  const int fd = ssh_get_fd(session);
  struct stat before {
  }, after{};
  const bool is_open = ::fstat(fd, &before) == 0;
  ssh_disconnect(session);
  ssh_free(session);
  if (is_open && ::fstat(fd, &after) == 0 && after.st_dev == before.st_dev && after.st_ino == before.st_ino) {
    ::close(fd);
  }
}

SilenceWatch::SilenceWatch(ssh_session session, Duration limit) : session_(session), limit_(limit) {
  ssh_set_counters(session, &counter_, nullptr);
}

absl::Status SilenceWatch::Check() {
  const TimePoint now = Now();
  if (std::exchange(heard_bytes_, counter_.in_bytes) != counter_.in_bytes) {
    heard_ = now;
    asked_.reset();
  }
  if (now < next_check()) return absl::OkStatus();
  if (asked_) {
    return Unavailable("the connection is lost: it has not answered for %.0f s", ToSeconds(limit_ / 2));
  }
  asked_ = now;
  // After an answer, the first call takes that in and sends nothing.
  for (int i = 0; i < 2; ++i) (void)ssh_send_keepalive(session_);
  return absl::OkStatus();
}

SessionPump::SessionPump(ssh_session session) : session_(session), event_(ssh_event_new()) {
  MUSTER_CHECK(event_ != nullptr && ssh_event_add_session(event_, session) == SSH_OK);
}

SessionPump::~SessionPump() {
  ssh_event_remove_session(event_, session_);
  ssh_event_free(event_);
}

absl::Status SessionPump::Pump() {
  if (ssh_event_dopoll(event_, 0) == SSH_ERROR || !ssh_is_connected(session_)) {
    return Unavailable("the connection is lost: %s", ssh_get_error(session_));
  }
  return absl::OkStatus();
}

absl::Status WaitForSession(ssh_session session, const Limits& limits) {
  const int fd = ssh_get_fd(session);
  if (fd < 0) return Unavailable("the connection is closed: %s", ssh_get_error(session));
  const bool output = (ssh_get_poll_flags(session) & SSH_WRITE_PENDING) != 0;
  return WaitForFd(fd, output ? POLLIN | POLLOUT : POLLIN, limits);
}

absl::Status LogIn(const SshTarget& target, const SshOptions& options, const Limits& limits,
                   SshLogin& login) {
  RandomStream random(RandomSeed());
  Duration pause = kFirstPause;
  std::vector<AcceptedKey> accepted;
  for (int attempt = 1;; ++attempt) {
    login = SshLogin();
    login.accepted = accepted;
    const absl::Status status = TryToLogIn(target, options, limits, login);
    accepted = login.accepted;
    if (status.ok()) return status;
    // Full jitter (Brooker, "Exponential backoff and jitter", AWS 2015): those that were turned away together
    // do not come back together.
    const Duration sleep = std::chrono::duration_cast<Duration>(pause * random.NextDouble());
    const bool is_last =
        !login.dropped || attempt >= options.max_attempts || Now() + sleep >= limits.deadline;
    login = SshLogin();
    if (is_last) return status;
    MUSTER_RETURN_IF_ERROR(SleepFor(sleep, limits));
    pause = std::min<Duration>(2 * pause, kLongestPause);
  }
}

absl::StatusOr<HostKey> AskHostKey(UniqueFd connection, const std::string& type, Limits limits) {
  SshLogin login;
  MUSTER_ASSIGN_OR_RETURN(const Turns::Turn turn, WaitForGreeting(connection.get(), limits));
  MUSTER_RETURN_IF_ERROR(Begin(std::move(connection), /*user=*/"", {{.type = type}}, limits, login));
  return login.key;
}

}  // namespace muster
