// For tests: a way to a TCP server whose beginning takes long, as over a long distance or to a host with much
// to do.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <list>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/file.h"
#include "tests/support/free_port.h"

namespace muster {

class SlowDoor {
 public:
  /// Whoever connects to address() is connected to `server`, "127.0.0.1:port", after so long.
  SlowDoor(std::string server, Duration wait) : server_(std::move(server)), wait_(wait) {
    listener_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const int yes = 1;
    ::setsockopt(listener_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    const sockaddr_in own = Parse(address_);
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&own), sizeof own), 0);
    EXPECT_EQ(::listen(listener_.get(), 128), 0);
    thread_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) Turn();
    });
  }

  const std::string& address() const { return address_; }

 private:
  struct Passage {
    TimePoint opens;
    UniqueFd outer, inner;  // inner: once it is open
  };

  static sockaddr_in Parse(const std::string& address) {
    sockaddr_in parsed{.sin_family = AF_INET};
    const size_t colon = address.rfind(':');
    parsed.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
    EXPECT_EQ(::inet_pton(AF_INET, address.substr(0, colon).c_str(), &parsed.sin_addr), 1);
    return parsed;
  }

  // False: it is over.
  static bool Pass(int from, int to) {
    char bytes[65536];
    const ssize_t n = ::recv(from, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n < 0) return errno == EAGAIN;
    return n > 0 && WriteAll(to, std::string_view(bytes, n)).ok();
  }

  bool Serve(Passage& passage) {
    if (passage.inner.valid()) {
      return Pass(passage.outer.get(), passage.inner.get()) && Pass(passage.inner.get(), passage.outer.get());
    }
    if (Now() < passage.opens) return true;
    passage.inner = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in server = Parse(server_);
    return ::connect(passage.inner.get(), reinterpret_cast<const sockaddr*>(&server), sizeof server) == 0;
  }

  void Turn() {
    std::vector<pollfd> events = {{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
    for (const Passage& passage : passages_) {
      if (!passage.inner.valid()) continue;
      events.push_back({.fd = passage.outer.get(), .events = POLLIN, .revents = 0});
      events.push_back({.fd = passage.inner.get(), .events = POLLIN, .revents = 0});
    }
    (void)::poll(events.data(), events.size(), 10);
    if (UniqueFd outer(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC)); outer.valid()) {
      passages_.push_back({.opens = Now() + wait_, .outer = std::move(outer)});
    }
    std::erase_if(passages_, [this](Passage& passage) { return !Serve(passage); });
  }

  const std::string server_, address_ = FreeAddress();
  const Duration wait_;
  UniqueFd listener_;
  std::list<Passage> passages_;
  std::jthread thread_;
};

}  // namespace muster
