#include "base/connections.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdlib>
#include <vector>

#include "base/file.h"

namespace muster {
namespace {

// Of one end; empty: the socket has no such end, or is none of TCP.
std::string HostOf(int fd, int (*name)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (name(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return "";
  char text[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    (void)::inet_ntop(AF_INET, &reinterpret_cast<sockaddr_in&>(address).sin_addr, text, sizeof text);
  } else if (address.ss_family == AF_INET6) {
    const in6_addr& v6 = reinterpret_cast<sockaddr_in6&>(address).sin6_addr;
    // An IPv4 address, at a socket for both.
    IN6_IS_ADDR_V4MAPPED(&v6) ? ::inet_ntop(AF_INET, &v6.s6_addr[12], text, sizeof text)
                              : ::inet_ntop(AF_INET6, &v6, text, sizeof text);
  }
  return text;
}

}  // namespace

int ShutDownConnections(const std::set<std::string>& hosts) {
  const auto has_end = [&](int fd) {
    const std::string peer = HostOf(fd, ::getpeername);
    return !peer.empty() && (hosts.contains(peer) || hosts.contains(HostOf(fd, ::getsockname)));
  };
  int count = 0;
  for (const std::string& name : ListDirectory("/proc/self/fd").value_or(std::vector<std::string>{})) {
    const int number = std::atoi(name.c_str());
    // Of files no copy is made: with its end, the process would lose its locks on them.
    if (!has_end(number)) continue;
    // A descriptor of our own: that one may be closed, and its number be another's, at any moment.
    const UniqueFd fd(::fcntl(number, F_DUPFD_CLOEXEC, 0));
    count += fd.valid() && has_end(fd.get()) && ::shutdown(fd.get(), SHUT_RDWR) == 0;
  }
  return count;
}

}  // namespace muster
