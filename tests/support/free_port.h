// Ports for test servers.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <set>
#include <string>

#include "base/file.h"
#include "base/random.h"

namespace muster {

/// "127.0.0.1:port", free a moment ago, and never the same twice in one process. Drawn at random from ports
/// that the kernel does not give to clients and muster's agent does not lease, so that nobody is likely to
/// take it before the server does. One thread at a time.
inline std::string FreeAddress(const char* host = "127.0.0.1") {
  constexpr int kFirst = 10'240, kEnd = 20'000, kAttempts = 1000;
  static RandomStream random(RandomSeed());
  static std::set<int> given;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const int port = kFirst + static_cast<int>(random.NextBelow(kEnd - kFirst));
    const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    EXPECT_EQ(::inet_pton(AF_INET, host, &address.sin_addr), 1);
    if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) continue;
    if (given.insert(port).second) return std::string(host) + ":" + std::to_string(port);
  }
  ADD_FAILURE() << "no port is free";
  return std::string(host) + ":1";
}

}  // namespace muster
