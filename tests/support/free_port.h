// Ports for test servers.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>

#include "base/file.h"

namespace muster {

/// "127.0.0.1:port", free a moment ago. The kernel hands out ephemeral ports in random order, so that nobody
/// is likely to get the same one before the server has it.
inline std::string FreeAddress(const char* host = "127.0.0.1") {
  const UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  EXPECT_EQ(::inet_pton(AF_INET, host, &address.sin_addr), 1);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return std::string(host) + ":" + std::to_string(ntohs(address.sin_port));
}

}  // namespace muster
