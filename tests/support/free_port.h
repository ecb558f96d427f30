// Ports for test servers.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <filesystem>
#include <map>
#include <string>

#include "base/file.h"
#include "base/random.h"

namespace muster {

/// "127.0.0.1:port", free a moment ago, and this process's until it ends: no test gives it to anybody else,
/// not even while the server that is to have it is being started again. Drawn at random from ports that the
/// kernel does not give to clients and muster's agent does not lease. One thread at a time.
inline std::string FreeAddress(const char* host = "127.0.0.1") {
  constexpr int kFirst = 10'240, kEnd = 20'000, kAttempts = 1000;
  static RandomStream random(RandomSeed());
  static std::map<int, UniqueFd> own;  // and the locks on them
  const std::filesystem::path locks = std::filesystem::temp_directory_path() / "muster-test-ports";
  std::filesystem::create_directories(locks);
  // Whoever makes them makes them for all users, whatever its umask says. The others may not, and need not.
  std::error_code ignored;
  using std::filesystem::perm_options;
  std::filesystem::permissions(locks, std::filesystem::perms::all,
                               perm_options::replace | perm_options::nofollow, ignored);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const int port = kFirst + static_cast<int>(random.NextBelow(kEnd - kFirst));
    if (own.contains(port)) continue;
    UniqueFd lock(
        ::open((locks / std::to_string(port)).c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (lock.valid()) (void)::fchmod(lock.get(), 0666);
    if (!lock.valid() || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) continue;
    const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    EXPECT_EQ(::inet_pton(AF_INET, host, &address.sin_addr), 1);
    if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) continue;
    own.emplace(port, std::move(lock));
    return std::string(host) + ":" + std::to_string(port);
  }
  ADD_FAILURE() << "no port is free";
  return std::string(host) + ":1";
}

}  // namespace muster
