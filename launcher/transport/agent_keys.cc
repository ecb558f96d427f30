#include "launcher/transport/agent_keys.h"

#include <absl/strings/escaping.h>
#include <libssh/libssh.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "launcher/transport/login_secrets.h"

namespace muster {
namespace {

constexpr Duration kPatience = std::chrono::seconds(5);  // with an agent that asks nobody for this
constexpr size_t kMostBytes = 256 << 10;                 // of a message, as in OpenSSH

// Of draft-miller-ssh-agent: a message is its length in four bytes, and its type behind that.
constexpr char kRequestIdentities = 11, kIdentitiesAnswer = 12;

uint32_t NumberAt(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(bytes[i])); };
  return byte(0) << 24 | byte(1) << 16 | byte(2) << 8 | byte(3);
}

std::string Number(size_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

absl::StatusOr<std::string> ReadExactly(int fd, size_t size, const Limits& limits) {
  std::string bytes(size, '\0');
  for (size_t have = 0; have < size;) {
    MUSTER_RETURN_IF_ERROR(WaitForFd(fd, POLLIN, limits));
    const ssize_t n = ::recv(fd, bytes.data() + have, size - have, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n <= 0) return Unavailable("it hangs up");
    have += static_cast<size_t>(n);
  }
  return bytes;
}

// Without its length.
absl::StatusOr<std::string> ReadMessage(int fd, const Limits& limits) {
  MUSTER_ASSIGN_OR_RETURN(const std::string length, ReadExactly(fd, 4, limits));
  const size_t size = NumberAt(length);
  if (size == 0 || size > kMostBytes) return DataLoss("a message of %d bytes", size);
  return ReadExactly(fd, size, limits);
}

absl::Status WriteMessage(int fd, const std::string& message, const Limits& limits) {
  const std::string bytes = Number(message.size()) + message;
  for (size_t sent = 0; sent < bytes.size();) {
    MUSTER_RETURN_IF_ERROR(WaitForFd(fd, POLLOUT, limits));
    const ssize_t n = ::send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (n <= 0) return Unavailable("it hangs up");
    sent += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

// What an agent has answered: keys, each with a comment. Nothing: that is another answer.
std::optional<std::vector<std::pair<std::string, std::string>>> ParseKeys(std::string_view answer) {
  if (answer.size() < 5 || answer[0] != kIdentitiesAnswer) return std::nullopt;
  const uint32_t count = NumberAt(answer.substr(1));
  answer.remove_prefix(5);
  std::vector<std::pair<std::string, std::string>> keys;
  const auto take = [&](std::string* text) {
    if (answer.size() < 4 || answer.size() - 4 < NumberAt(answer)) return false;
    *text = answer.substr(4, NumberAt(answer));
    answer.remove_prefix(4 + text->size());
    return true;
  };
  for (uint32_t i = 0; i < count; ++i) {
    auto& [blob, comment] = keys.emplace_back();
    if (!take(&blob) || !take(&comment)) return std::nullopt;
  }
  return keys;
}

std::string WithFirst(const std::string& answer, const std::vector<std::string>& first) {
  auto keys = ParseKeys(answer);
  if (!keys) return answer;
  std::ranges::stable_sort(
      *keys, {}, [&](const auto& key) { return std::ranges::find(first, key.first) - first.begin(); });
  std::string out = kIdentitiesAnswer + Number(keys->size());
  for (const auto& [blob, comment] : *keys) {
    out += Number(blob.size()) + blob + Number(comment.size()) + comment;
  }
  return out;
}

}  // namespace

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

std::string PublicBlobOf(const std::string& path) {
  for (const std::string& file : {path, path + ".pub"}) {
    ssh_key raw = nullptr;
    if (ssh_pki_import_pubkey_file(file.c_str(), &raw) != SSH_OK) continue;
    const SshKey key(raw);
    char* text = nullptr;
    if (ssh_pki_export_pubkey_base64(key.get(), &text) != SSH_OK) continue;
    std::string blob;
    const bool is_good = absl::Base64Unescape(text, &blob);
    ssh_string_free_char(text);
    if (is_good) return blob;
  }
  return "";
}

bool AgentHas(const std::string& agent_socket, const std::string& blob) {
  if (agent_socket.empty() || blob.empty()) return false;
  const Limits limits{.deadline = Now() + kPatience};
  const absl::StatusOr<UniqueFd> fd = ConnectAgent(agent_socket);
  if (!fd.ok() || !WriteMessage(fd->get(), {kRequestIdentities}, limits).ok()) return false;
  const absl::StatusOr<std::string> answer = ReadMessage(fd->get(), limits);
  if (!answer.ok()) return false;
  const auto keys = ParseKeys(*answer);
  return keys && std::ranges::any_of(*keys, [&](const auto& key) { return key.first == blob; });
}

absl::StatusOr<std::unique_ptr<AgentFront>> AgentFront::Start(UniqueFd agent, std::vector<std::string> first,
                                                              const Limits& limits) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoError(errno, "ssh-agent");
  }
  try {
    return std::unique_ptr<AgentFront>(
        new AgentFront(std::move(agent), UniqueFd(ends[0]), UniqueFd(ends[1]), std::move(first), limits));
  } catch (const std::system_error&) {
    return Unavailable("ssh-agent: this account may have no more threads (ulimit -u)");
  }
}

AgentFront::AgentFront(UniqueFd agent, UniqueFd ours, UniqueFd theirs, std::vector<std::string> first,
                       Limits limits)
    : agent_(std::move(agent)),
      ours_(std::move(ours)),
      theirs_(std::move(theirs)),
      first_(std::move(first)),
      limits_(limits),
      thread_([this] { Run(); }) {}

AgentFront::~AgentFront() {
  for (const UniqueFd* fd : {&ours_, &agent_}) ::shutdown(fd->get(), SHUT_RDWR);  // ends the waits on them
}

void AgentFront::Run() {
  absl::Status status;
  while (status.ok()) {
    status = Pass(ours_, agent_, /*is_answer=*/false);
    if (status.ok()) status = Pass(agent_, ours_, /*is_answer=*/true);
  }
  ::shutdown(ours_.get(), SHUT_RDWR);  // whoever waits for an answer
}

absl::Status AgentFront::Pass(const UniqueFd& from, const UniqueFd& to, bool is_answer) {
  MUSTER_ASSIGN_OR_RETURN(const std::string message, ReadMessage(from.get(), limits_));
  return WriteMessage(to.get(), is_answer ? WithFirst(message, first_) : message, limits_);
}

}  // namespace muster
