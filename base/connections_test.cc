#include "base/connections.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "base/file.h"

namespace muster {
namespace {

// A connection from 127.0.0.1 to `host`, and the socket that listens there.
struct Connection {
  explicit Connection(const char* host) {
    sockaddr_in address{.sin_family = AF_INET};
    socklen_t size = sizeof address;
    auto* const name = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(::inet_pton(AF_INET, host, &address.sin_addr), 1);
    EXPECT_EQ(::bind(listening.get(), name, size), 0);
    EXPECT_EQ(::listen(listening.get(), 1), 0);
    EXPECT_EQ(::getsockname(listening.get(), name, &size), 0);
    sockaddr_in own{.sin_family = AF_INET};
    EXPECT_EQ(::inet_pton(AF_INET, "127.0.0.1", &own.sin_addr), 1);
    EXPECT_EQ(::bind(dialed.get(), reinterpret_cast<sockaddr*>(&own), sizeof own), 0);
    EXPECT_EQ(::connect(dialed.get(), name, size), 0);
    accepted.reset(::accept(listening.get(), nullptr, nullptr));
  }
  bool is_over() const {
    char byte;
    return ::recv(dialed.get(), &byte, 1, MSG_DONTWAIT) == 0;
  }
  UniqueFd listening{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  UniqueFd dialed{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  UniqueFd accepted;
};

TEST(ShutDownConnections, EndsThoseOfAHostAtBothEnds) {
  const Connection here("127.0.0.1"), there("127.0.0.2");
  EXPECT_EQ(ShutDownConnections({"127.0.0.3"}), 0);
  EXPECT_FALSE(there.is_over());
  EXPECT_EQ(ShutDownConnections({"127.0.0.2", "a.name"}), 2);
  EXPECT_TRUE(there.is_over());
  EXPECT_FALSE(here.is_over());
  sockaddr_in address{};
  socklen_t size = sizeof address;
  ASSERT_EQ(::getsockname(there.listening.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  const UniqueFd again(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(again.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
}

}  // namespace
}  // namespace muster
