#include "launcher/transport/login_secrets.h"

#include <fcntl.h>
#include <libssh/libssh.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/wake.h"
#include "launcher/transport/agent_keys.h"

namespace muster {
namespace {

constexpr int kMostAttempts = 3;
constexpr Duration kPatience = std::chrono::minutes(2);  // with the person
constexpr size_t kMostBytes = 1024;                      // of a passphrase
constexpr char kInterrupt = 3, kEndOfFile = 4;           // Ctrl-C, Ctrl-D

void Wipe(std::string& secret) { ::explicit_bzero(secret.data(), secret.size()); }

// Without echo, and so that Ctrl-C comes as a character: a signal would leave the terminal like that.
class SilentTerminal {
 public:
  explicit SilentTerminal(int fd) : fd_(fd) {
    is_silent_ = ::tcgetattr(fd_, &before_) == 0;
    termios silent = before_;
    silent.c_lflag &= ~static_cast<tcflag_t>(ECHO | ISIG | ICANON);
    silent.c_cc[VMIN] = 1;
    silent.c_cc[VTIME] = 0;
    is_silent_ = is_silent_ && ::tcsetattr(fd_, TCSAFLUSH, &silent) == 0;
  }
  ~SilentTerminal() {
    if (is_silent_) (void)::tcsetattr(fd_, TCSAFLUSH, &before_);
  }
  bool is_silent() const { return is_silent_; }

 private:
  const int fd_;
  termios before_{};
  bool is_silent_ = false;
};

// TERM and HUP, where they would end this process and leave the terminal as that has it: they wait until it
// is as it was before. One at a time.
class HeldSignals {
 public:
  HeldSignals() {
    held = 0;
    came().Clear();
    for (Signal& signal : signals_) {
      ::sigaction(signal.number, nullptr, &signal.before);
      signal.is_held = signal.before.sa_handler == SIG_DFL;
      struct sigaction hold {};
      hold.sa_handler = [](int number) {
        held = number;
        came().Set();
      };
      if (signal.is_held) ::sigaction(signal.number, &hold, nullptr);
    }
  }
  ~HeldSignals() {
    for (const Signal& signal : signals_) {
      if (signal.is_held) ::sigaction(signal.number, &signal.before, nullptr);
    }
    if (held != 0) ::raise(held);
  }
  HeldSignals(const HeldSignals&) = delete;

  /// Readable once one has come.
  int fd() const { return came().fd(); }

 private:
  struct Signal {
    int number;
    struct sigaction before {};
    bool is_held = false;
  };
  static Wake& came() {
    static Wake wake;
    return wake;
  }

  static inline std::atomic<int> held = 0;  // the handler may run on any thread
  Signal signals_[2] = {{.number = SIGTERM}, {.number = SIGHUP}};
};

enum class Line { kWhole, kNone, kInterrupted };

Line ReadLine(int fd, const HeldSignals& signals, std::string* line) {
  const TimePoint deadline = Now() + kPatience;
  line->reserve(kMostBytes);  // no copies of it stay behind
  while (line->size() < kMostBytes) {
    pollfd ready[] = {{.fd = fd, .events = POLLIN, .revents = 0},
                      {.fd = signals.fd(), .events = POLLIN, .revents = 0}};
    const int polled = ::poll(ready, 2, MillisecondsUntil(deadline));
    if (polled < 0 && errno == EINTR) continue;
    char c = 0;
    if (polled <= 0 || ready[1].revents != 0 || ::read(fd, &c, 1) != 1) return Line::kNone;
    if (c == '\n' || c == '\r') return Line::kWhole;
    if (c == kInterrupt) return Line::kInterrupted;
    if (c == kEndOfFile) return Line::kNone;
    if (c == '\b' || c == 127) {
      if (!line->empty()) line->pop_back();
    } else {
      line->push_back(c);
    }
  }
  return Line::kNone;
}

void Say(int fd, const std::string& text) { (void)!::write(fd, text.data(), text.size()); }

// Whether the key needs a passphrase: whether one is asked for.
bool IsLocked(const std::string& path) {
  bool is_asked = false;
  const auto note = [](const char*, char*, size_t, int, int, void* asked) {
    *static_cast<bool*>(asked) = true;
    return -1;
  };
  ssh_key raw = nullptr;
  const int result = ssh_pki_import_privkey_file(path.c_str(), nullptr, note, &is_asked, &raw);
  const SshKey key(raw);
  return result != SSH_OK && is_asked;
}

}  // namespace

std::optional<std::string> AskAtTerminal(const std::string& question) {
  const UniqueFd terminal(::open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!terminal.valid() || ::tcgetpgrp(terminal.get()) != ::getpgrp()) return std::nullopt;
  std::string line;
  Line read = Line::kNone;
  {
    const HeldSignals signals;
    const SilentTerminal silent(terminal.get());
    if (!silent.is_silent()) return std::nullopt;
    Say(terminal.get(), question);
    read = ReadLine(terminal.get(), signals, &line);
    Say(terminal.get(), "\n");
  }
  if (read == Line::kWhole) return line;
  Wipe(line);
  if (read == Line::kInterrupted) ::raise(SIGINT);
  return std::nullopt;
}

void SshKeyDeleter::operator()(ssh_key_struct* key) const { ssh_key_free(key); }

LoginSecrets::~LoginSecrets() {
  if (password_) Wipe(*password_);
}

void LoginSecrets::Unlock(const std::string& path, const std::string& agent_socket) {
  const std::lock_guard lock(mutex_);
  const auto [known, is_new] = keys_.try_emplace(path);
  if (!is_new || has_left_ || !IsLocked(path) || AgentHas(agent_socket, PublicBlobOf(path))) return;
  std::string question = "Passphrase of " + path + ": ";
  for (int attempt = 0; attempt < kMostAttempts && !known->second; ++attempt) {
    std::optional<std::string> passphrase = ask_(question);
    has_left_ = !passphrase;
    if (!passphrase || passphrase->empty()) return;
    ssh_key opened = nullptr;
    (void)ssh_pki_import_privkey_file(path.c_str(), passphrase->c_str(), nullptr, nullptr, &opened);
    known->second.reset(opened);
    Wipe(*passphrase);
    question = "That does not open it. Passphrase of " + path + ": ";
  }
}

SshKey LoginSecrets::Find(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  const auto found = keys_.find(path);
  return SshKey(found == keys_.end() || !found->second ? nullptr : ssh_key_dup(found->second.get()));
}

}  // namespace muster
