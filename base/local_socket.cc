#include "base/local_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstring>

namespace muster {
namespace {

sockaddr_un AddressOf(const std::string& name, socklen_t* size) {
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  MUSTER_CHECK(name.size() < sizeof address.sun_path);
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // abstract: after a zero
  *size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

// By way of its folder, since a path may be longer than an address. Unavailable: there is no such folder.
absl::StatusOr<UniqueFd> OpenFolderOf(const std::filesystem::path& path, sockaddr_un* address) {
  UniqueFd folder(::open(path.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder.valid())
    return Unavailable("%s: %s", path.parent_path().string(), std::string(std::strerror(errno)));
  const std::string name = absl::StrFormat("/proc/self/fd/%d/%s", folder.get(), path.filename().string());
  *address = {.sun_family = AF_UNIX, .sun_path = {}};
  MUSTER_CHECK(name.size() < sizeof address->sun_path);
  std::memcpy(address->sun_path, name.data(), name.size());
  return folder;
}

// The descriptors that came with a message.
std::vector<UniqueFd> FdsOf(const msghdr& message) {
  std::vector<UniqueFd> fds;
  for (const cmsghdr* head = CMSG_FIRSTHDR(&message); head != nullptr;
       head = CMSG_NXTHDR(const_cast<msghdr*>(&message), const_cast<cmsghdr*>(head))) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    for (size_t at = CMSG_LEN(0); at + sizeof(int) <= head->cmsg_len; at += sizeof(int)) {
      int fd;
      std::memcpy(&fd, reinterpret_cast<const char*>(head) + at, sizeof fd);
      fds.emplace_back(fd);
    }
  }
  return fds;
}

}  // namespace

absl::StatusOr<UniqueFd> ListenLocal(const std::string& name) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  socklen_t size;
  const sockaddr_un address = AddressOf(name, &size);
  if (!fd.valid() || ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0) {
    const int error = errno;
    return ErrnoError(error, "listening as " + name);
  }
  return fd;
}

absl::StatusOr<UniqueFd> ConnectLocal(const std::string& name) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  socklen_t size;
  const sockaddr_un address = AddressOf(name, &size);
  if (!fd.valid() || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) {
    return Unavailable("no process of this host listens as %s: %s", name, std::strerror(errno));
  }
  if (!IsOfSameUser(fd)) return Unavailable("another user listens as %s", name);
  return fd;
}

absl::StatusOr<UniqueFd> ListenLocalAt(const std::filesystem::path& path) {
  sockaddr_un address;
  MUSTER_ASSIGN_OR_RETURN(const UniqueFd folder, OpenFolderOf(path, &address));
  (void)::unlink(path.c_str());
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid() || ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0) {
    const int error = errno;
    return ErrnoError(error, "listening at " + path.string());
  }
  return fd;
}

absl::StatusOr<UniqueFd> ConnectLocalAt(const std::filesystem::path& path) {
  sockaddr_un address;
  MUSTER_ASSIGN_OR_RETURN(const UniqueFd folder, OpenFolderOf(path, &address));
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid() || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return Unavailable("nobody listens at %s: %s", path.string(), std::string(std::strerror(errno)));
  }
  if (!IsOfSameUser(fd)) return Unavailable("another user listens at %s", path.string());
  return fd;
}

bool IsOfSameUser(const UniqueFd& socket) {
  ucred peer{};
  socklen_t size = sizeof peer;
  return ::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == ::geteuid();
}

int SendLocal(const UniqueFd& socket, std::span<const char> bytes, int fd) {
  iovec part{.iov_base = const_cast<char*>(bytes.data()), .iov_len = bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  if (fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(head), &fd, sizeof fd);
  }
  while (::sendmsg(socket.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
    if (errno != EINTR) return errno;
  }
  return 0;
}

LocalMessage ReceiveLocal(const UniqueFd& socket, std::span<char> room) {
  iovec part{.iov_base = room.data(), .iov_len = room.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  LocalMessage result;
  do {
    result.size = ::recvmsg(socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (result.size < 0 && errno == EINTR);
  if (result.size < 0) {
    result.error_number = errno;
    return result;
  }
  result.is_whole = (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
  result.fds = FdsOf(message);
  return result;
}

}  // namespace muster
