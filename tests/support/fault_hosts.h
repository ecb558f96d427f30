// For tests: what a cluster needs to go wrong. Addresses that swallow connections, and a look at what was
// left on hosts.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file.h"

namespace muster {

/// A TCP socket bound to `address`:`port` (0: any), or an invalid one.
inline UniqueFd BindTcp(const std::string& address, uint16_t port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(port);
  if (!fd.valid() || ::inet_pton(AF_INET, address.c_str(), &name.sin_addr) != 1 ||
      ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) {
    fd.reset();
  }
  return fd;
}

/// Starts a TCP connection and does not wait for it.
inline UniqueFd BeginConnect(const std::string& address, uint16_t port) {
  UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(port);
  ::inet_pton(AF_INET, address.c_str(), &name.sin_addr);
  const int result = ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name);
  EXPECT_TRUE(result == 0 || errno == EINPROGRESS) << std::strerror(errno);
  return fd;
}

/// Listens on 127.0.0.1. The kernel completes every connection, and nobody ever says a word.
class SilentHost {
 public:
  explicit SilentHost(int backlog = 64) : listener_(BindTcp("127.0.0.1", 0)) {
    sockaddr_in name{};
    socklen_t size = sizeof name;
    EXPECT_EQ(::listen(listener_.get(), backlog), 0);
    EXPECT_EQ(::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&name), &size), 0);
    port_ = ntohs(name.sin_port);
  }

  uint16_t port() const { return port_; }

  /// How many have connected since the last call.
  int TakeConnections() {
    int count = 0;
    while (UniqueFd(::accept(listener_.get(), nullptr, nullptr)).valid()) ++count;
    return count;
  }

 private:
  UniqueFd listener_;
  uint16_t port_ = 0;
};

/// As a firewall that drops packets: its backlog is full, so the kernel answers no further connection.
class BlackHole {
 public:
  BlackHole() : host_(/*backlog=*/0) {
    for (int i = 0; i < 8; ++i) connections_.push_back(BeginConnect("127.0.0.1", host_.port()));
  }
  uint16_t port() const { return host_.port(); }

 private:
  SilentHost host_;
  std::vector<UniqueFd> connections_;
};

/// A small tmpfs over a folder, for as long as the object lives. Needs root.
class SmallDisk {
 public:
  SmallDisk(const std::string& folder, uint64_t bytes, unsigned long flags = 0) : folder_(folder) {
    const std::string options = "mode=0700,size=" + std::to_string(bytes);
    mounted_ = ::mount("none", folder.c_str(), "tmpfs", flags, options.c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(folder_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  bool mounted() const { return mounted_; }
  bool MakeReadOnly() {
    return ::mount("none", folder_.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, nullptr) == 0;
  }

 private:
  const std::string folder_;
  bool mounted_ = false;
};

/// Folders of tasks that a host's agent has made, in the home folder of the host.
inline std::vector<std::string> TaskFoldersIn(const std::string& home) {
  std::vector<std::string> found;
  const std::filesystem::path hosts = std::filesystem::path(home) / ".muster/hosts";
  for (const std::string& host : ListDirectory(hosts).value_or(std::vector<std::string>{})) {
    const std::filesystem::path jobs = hosts / host / "jobs";
    for (const std::string& job : ListDirectory(jobs).value_or(std::vector<std::string>{})) {
      for (const std::string& task : ListDirectory(jobs / job).value_or(std::vector<std::string>{})) {
        if (std::filesystem::is_directory(jobs / job / task)) found.push_back(job + "/" + task);
      }
    }
  }
  return found;
}

/// Ids of the processes that were started on the host with this home folder.
inline std::vector<std::string> ProcessesIn(const std::string& home) {
  const std::string mine = std::string(1, '\0') + "HOME=" + home + std::string(1, '\0');
  std::vector<std::string> found;
  for (const std::string& pid : ListDirectory("/proc").value_or(std::vector<std::string>{})) {
    if (!std::all_of(pid.begin(), pid.end(), [](char c) { return c >= '0' && c <= '9'; })) continue;
    const std::string environment = ReadFile("/proc/" + pid + "/environ").value_or("");
    if ((std::string(1, '\0') + environment).find(mine) != std::string::npos) found.push_back(pid);
  }
  return found;
}

/// The same once there are none, or after 30 s: an agent without tasks ends soon, but not at once.
inline std::vector<std::string> ProcessesLeftIn(const std::string& home) {
  const TimePoint deadline = Now() + std::chrono::seconds(30);
  while (true) {
    std::vector<std::string> found = ProcessesIn(home);
    if (found.empty() || Now() >= deadline) return found;
    ::usleep(20'000);
  }
}

}  // namespace muster
