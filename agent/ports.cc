#include "agent/ports.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <optional>

#include "base/file.h"

namespace muster {
namespace {

constexpr std::string_view kVersionLine = "muster-agent lease 1\n";
constexpr uint32_t kPortCount = kLastLeasedPort - kFirstLeasedPort + 1;
constexpr uint32_t kMaxPortsPerTask = 1000;

// Lines of text after the version; names and addresses have no newlines.
std::string Format(const std::string& job, const std::string& task, const std::string& address) {
  return absl::StrFormat("%s%s\n%s\n%s\n", kVersionLine, job, task, address);
}

std::vector<std::string> Lines(std::string_view text) {
  std::vector<std::string> lines;
  for (size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  return lines;
}

absl::StatusOr<std::string> AddressBytes(const std::string& address) {
  MUSTER_ASSIGN_OR_RETURN(const SocketAddress at, ParseSocketAddress(address, 0));
  const auto* v4 = reinterpret_cast<const sockaddr_in*>(&at.storage);
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&at.storage);
  return at.family() == AF_INET
             ? std::string(reinterpret_cast<const char*>(&v4->sin_addr), sizeof v4->sin_addr)
             : std::string(reinterpret_cast<const char*>(&v6->sin6_addr), sizeof v6->sin6_addr);
}

// A line of /proc/net/tcp or tcp6 (proc_pid_net(5)): "0: 0100007F:4E20 00000000:0000 0A ... uid ...". The
// address stands there as 32-bit words of this machine, each in hexadecimal.
std::optional<std::pair<std::string, uint32_t>> ParseListener(const std::string& line,
                                                              std::optional<uid_t> account) {
  constexpr unsigned kListen = 0x0A;
  char address[33] = "";
  unsigned port = 0, state = 0, owner = 0;
  if (std::sscanf(line.c_str(), " %*d: %32[0-9A-F]:%x %*[0-9A-F]:%*x %x %*x:%*x %*x:%*x %*x %u", address,
                  &port, &state, &owner) != 4 ||
      state != kListen || owner != account.value_or(owner))
    return std::nullopt;
  std::string bytes;
  for (std::string_view words = address; words.size() >= 8; words.remove_prefix(8)) {
    uint32_t word = 0;
    std::from_chars(words.data(), words.data() + 8, word, 16);
    bytes.append(reinterpret_cast<const char*>(&word), sizeof word);
  }
  return std::pair(std::move(bytes), port);
}

// Whose listeners count; unset: anybody's.
std::optional<uid_t> CountedAccount() {
  const uid_t account = ::geteuid();
  return account == 0 ? std::nullopt : std::optional(account);
}

}  // namespace

absl::StatusOr<SocketAddress> ParseSocketAddress(const std::string& address, uint32_t port) {
  SocketAddress result;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&result.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&result.storage);
  if (::inet_pton(AF_INET, address.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<uint16_t>(port));
    result.size = sizeof *v4;
  } else if (::inet_pton(AF_INET6, address.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(static_cast<uint16_t>(port));
    result.size = sizeof *v6;
  } else {
    return InvalidArgument("'%s' is no literal IPv4 or IPv6 address", address);
  }
  return result;
}

absl::StatusOr<bool> PortIsFree(const std::string& address, uint32_t port) {
  MUSTER_ASSIGN_OR_RETURN(const SocketAddress at, ParseSocketAddress(address, port));
  UniqueFd fd(::socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return ErrnoError(errno, "socket for " + address);
  if (::bind(fd.get(), at.get(), at.size) == 0) return true;
  if (errno == EADDRINUSE || errno == EACCES) return false;
  if (errno == EADDRNOTAVAIL) {
    return InvalidArgument("%s is not an address of this host: correct `data` in the inventory", address);
  }
  return ErrnoError(errno, "bind " + address);
}

PortLeases::PortLeases(std::filesystem::path folder) : folder_(std::move(folder)), random_(RandomSeed()) {
  for (const std::string& name : ListDirectory(folder_).value_or(std::vector<std::string>{})) {
    uint32_t port = 0;
    const auto parsed = std::from_chars(name.data(), name.data() + name.size(), port);
    const auto read = ReadFile(folder_ / name, 4096);
    if (!read.ok()) continue;  // a later daemon may be able to
    const std::string& text = *read;
    const std::vector<std::string> lines = Lines(text);
    if (parsed.ec == std::errc() && parsed.ptr == name.data() + name.size() && lines.size() == 4 &&
        text == Format(lines[1], lines[2], lines[3])) {
      leases_[port] = {lines[1], lines[2], lines[3]};
    } else {
      (void)RemoveTree(folder_ / name);
    }
  }
}

absl::StatusOr<std::vector<uint32_t>> PortLeases::Lease(const Request& request) {
  if (request.count > kMaxPortsPerTask) {
    return InvalidArgument("%d ports for one task; at most %d", request.count, kMaxPortsPerTask);
  }
  const Holder holder{request.job, request.task, request.address};
  std::vector<uint32_t> ports, release;
  for (const auto& [port, other] : leases_) {
    if (other.job != request.job || other.task != request.task) continue;
    bool keep = other == holder && ports.size() < request.count && !request.avoid.contains(port);
    if (keep && !request.task_runs) {
      MUSTER_ASSIGN_OR_RETURN(keep, PortIsFree(request.address, port));
    }
    (keep ? ports : release).push_back(port);
  }
  // From a random start, so that agents which do not know of each other (two accounts on one host) rarely
  // meet.
  const auto start = static_cast<uint32_t>(random_.NextBelow(kPortCount));
  std::vector<uint32_t> fresh;
  for (uint32_t i = 0; i < kPortCount && ports.size() + fresh.size() < request.count; ++i) {
    const uint32_t port = kFirstLeasedPort + (start + i) % kPortCount;
    if (leases_.contains(port) || request.avoid.contains(port)) continue;
    MUSTER_ASSIGN_OR_RETURN(const bool free, PortIsFree(request.address, port));
    if (free) fresh.push_back(port);
  }
  if (ports.size() + fresh.size() < request.count) {
    return Unavailable(
        "%s: no %d free ports from %d to %d on %s: forget old jobs (muster gc), or see what uses them",
        request.task, request.count, kFirstLeasedPort, kLastLeasedPort, request.address);
  }
  for (const uint32_t port : fresh) MUSTER_RETURN_IF_ERROR(Write(port, holder));
  for (const uint32_t port : release) Remove(port);
  ports.insert(ports.end(), fresh.begin(), fresh.end());
  return ports;
}

absl::Status PortLeases::Write(uint32_t port, const Holder& holder) {
  MUSTER_RETURN_IF_ERROR(MakeDirectories(folder_, 0700));
  MUSTER_RETURN_IF_ERROR(
      WriteFileAtomically(folder_ / std::to_string(port), Format(holder.job, holder.task, holder.address)));
  leases_[port] = holder;
  return absl::OkStatus();
}

void PortLeases::Remove(uint32_t port) {
  ::unlink((folder_ / std::to_string(port)).c_str());
  leases_.erase(port);
}

std::vector<uint32_t> PortLeases::PortsOf(const std::string& job, const std::string& task) const {
  std::vector<uint32_t> ports;
  for (const auto& [port, holder] : leases_) {
    if (holder.job == job && (task.empty() || holder.task == task)) ports.push_back(port);
  }
  return ports;
}

absl::StatusOr<int> PortLeases::Release(const std::string& job, const std::string& task) {
  const std::vector<uint32_t> ports = PortsOf(job, task);
  if (ports.empty()) return 0;
  MUSTER_ASSIGN_OR_RETURN(const ListeningPorts listening, ListeningPorts::Read());
  int in_use = 0;
  for (const uint32_t port : ports) {
    if (listening.Contains(leases_.at(port).address, port)) {
      ++in_use;
    } else {
      Remove(port);
    }
  }
  return in_use;
}

void PortLeases::GiveAway(const std::string& job, const std::string& task) {
  for (const uint32_t port : PortsOf(job, task)) Remove(port);
}

absl::StatusOr<int> PortLeases::CountInUse(const std::string& job, const std::string& task) const {
  const std::vector<uint32_t> ports = PortsOf(job, task);
  if (ports.empty()) return 0;
  MUSTER_ASSIGN_OR_RETURN(const ListeningPorts listening, ListeningPorts::Read());
  return static_cast<int>(std::ranges::count_if(
      ports, [&](uint32_t port) { return listening.Contains(leases_.at(port).address, port); }));
}

// Asks the kernel for listening sockets of a family, and is handed one after the other.
class SocketDiagnosis {
 public:
  explicit SocketDiagnosis(std::optional<uid_t> account) : account_(account) {}

  // False: nobody answers, or not all of it has come.
  bool Ask(uint8_t family, ListeningPorts* listening) {
    const UniqueFd socket(::socket(AF_NETLINK, SOCK_DGRAM | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
    const timeval timeout{.tv_sec = 1, .tv_usec = 0};
    if (!socket.valid() ||
        ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) != 0) {
      return false;
    }
    struct {
      nlmsghdr header;
      inet_diag_req_v2 request;
    } question{};
    question.header = {.nlmsg_len = sizeof question,
                       .nlmsg_type = SOCK_DIAG_BY_FAMILY,
                       .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP};
    question.request.sdiag_family = family;
    question.request.sdiag_protocol = IPPROTO_TCP;
    question.request.idiag_states = 1u << TCP_LISTEN;
    if (::send(socket.get(), &question, sizeof question, 0) != sizeof question) return false;
    while (true) {
      const ssize_t size = ::recv(socket.get(), buffer_.data(), buffer_.size(), 0);
      if (size < 0 && errno == EINTR) continue;
      if (size <= 0) return false;
      const std::optional<bool> end = Take(family, static_cast<size_t>(size), listening);
      if (end) return *end;
    }
  }

 private:
  // Set: that was all, or an error.
  std::optional<bool> Take(uint8_t family, size_t size, ListeningPorts* listening) {
    const auto* message = reinterpret_cast<const nlmsghdr*>(buffer_.data());
    for (; NLMSG_OK(message, size); message = NLMSG_NEXT(message, size)) {
      // With what has become of the whole of it.
      if (message->nlmsg_type == NLMSG_DONE) {
        return message->nlmsg_len >= NLMSG_LENGTH(sizeof(int)) &&
               *static_cast<const int*>(NLMSG_DATA(message)) == 0;
      }
      const bool is_socket = message->nlmsg_type == SOCK_DIAG_BY_FAMILY &&
                             message->nlmsg_len >= NLMSG_LENGTH(sizeof(inet_diag_msg));
      // Others have come or gone meanwhile, so some may be missing.
      if (!is_socket || (message->nlmsg_flags & NLM_F_DUMP_INTR) != 0) return false;
      const auto* found = static_cast<const inet_diag_msg*>(NLMSG_DATA(message));
      if (found->idiag_uid != account_.value_or(found->idiag_uid)) continue;
      const size_t bytes = family == AF_INET ? sizeof(in_addr) : sizeof(in6_addr);
      listening->Add(std::string(reinterpret_cast<const char*>(found->id.idiag_src), bytes),
                     ntohs(found->id.idiag_sport));
    }
    return std::nullopt;
  }

  const std::optional<uid_t> account_;
  alignas(nlmsghdr) std::array<char, size_t{64} << 10> buffer_;
};

absl::StatusOr<ListeningPorts> ListeningPorts::Read() {
  std::optional<ListeningPorts> listening = Ask();
  if (listening) return *std::move(listening);
  return ReadTables();
}

std::optional<ListeningPorts> ListeningPorts::Ask() {
  ListeningPorts listening;
  SocketDiagnosis diagnosis(CountedAccount());
  if (diagnosis.Ask(AF_INET, &listening) && diagnosis.Ask(AF_INET6, &listening)) return listening;
  return std::nullopt;
}

absl::StatusOr<ListeningPorts> ListeningPorts::ReadTables(const std::filesystem::path& folder) {
  MUSTER_ASSIGN_OR_RETURN(std::string lines, ReadFile(folder / "tcp"));
  const absl::StatusOr<std::string> six = ReadFile(folder / "tcp6");
  if (!six.ok() && !absl::IsNotFound(six.status())) return six.status();
  lines += six.value_or("");  // there is none without IPv6
  return Parse(lines, CountedAccount());
}

ListeningPorts ListeningPorts::Parse(std::string_view lines, std::optional<uid_t> account) {
  ListeningPorts listening;
  for (const std::string& line : Lines(lines)) {
    if (auto socket = ParseListener(line, account)) listening.Add(std::move(socket->first), socket->second);
  }
  return listening;
}

void ListeningPorts::Add(std::string address, uint32_t port) {
  // As servers that speak both listen on an IPv4 address: gRPC's do.
  constexpr std::string_view kMapped("\0\0\0\0\0\0\0\0\0\0\xff\xff", 12);
  if (address.starts_with(kMapped)) address.erase(0, kMapped.size());
  sockets_.emplace(std::move(address), port);
}

bool ListeningPorts::Contains(const std::string& address, uint32_t port) const {
  const absl::StatusOr<std::string> bytes = AddressBytes(address);
  return (bytes.ok() && sockets_.contains({*bytes, port})) ||
         sockets_.contains({std::string(sizeof(in_addr), '\0'), port}) ||
         sockets_.contains({std::string(sizeof(in6_addr), '\0'), port});
}

}  // namespace muster
