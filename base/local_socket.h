// Sockets between processes of one user on one host, under names that no file system has or in a folder, and
// descriptors that travel through them.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/status.h"

namespace muster {

/// SOCK_SEQPACKET sockets under an abstract name, known in this network namespace. Listening, and what is
/// accepted from it, is blocking; a connected one is not.
absl::StatusOr<UniqueFd> ListenLocal(const std::string& name);

/// Unavailable: nobody listens under this name here, or another user does, or too many wait.
absl::StatusOr<UniqueFd> ConnectLocal(const std::string& name);

/// The same under a path, however long it is, in a folder that keeps others out: containers that share the
/// network may have this user's number, but not this file. Takes the place of a socket that is there. Neither
/// end blocks.
absl::StatusOr<UniqueFd> ListenLocalAt(const std::filesystem::path& path);
absl::StatusOr<UniqueFd> ConnectLocalAt(const std::filesystem::path& path);

/// Others know the names of sockets, too, and could pass on what they hear.
bool IsOfSameUser(const UniqueFd& socket);

/// One message without waiting, with a descriptor of the sender's (-1: none), which stays open here. 0, or
/// the errno.
int SendLocal(const UniqueFd& socket, std::span<const char> message, int fd = -1);

struct LocalMessage {
  ssize_t size = 0;      // 0: the other end has hung up; -1: `error_number`
  int error_number = 0;  // EAGAIN: nothing is there
  bool is_whole = true;  // it fitted, its descriptors too
  std::vector<UniqueFd> fds;
};

/// One message without waiting, into `room`, with at most one descriptor.
LocalMessage ReceiveLocal(const UniqueFd& socket, std::span<char> room);

}  // namespace muster
