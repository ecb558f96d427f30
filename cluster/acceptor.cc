#include "cluster/acceptor.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "base/clock.h"

namespace muster {
namespace {

constexpr Duration kAcceptAgain = std::chrono::milliseconds(10);

}  // namespace

Acceptor::Acceptor(Take take)
    : take_(std::move(take)), thread_([this](const std::stop_token& stop) { Run(stop); }) {}

Acceptor::~Acceptor() {
  thread_.request_stop();
  wake_.Set();
}

void Acceptor::Add(UniqueFd listening) {
  const std::lock_guard lock(mutex_);
  added_.push_back(std::move(listening));
  wake_.Set();
}

void Acceptor::Run(const std::stop_token& stop) {
  std::vector<UniqueFd> sockets;
  while (true) {
    wake_.Clear();  // before it is looked what for
    if (stop.stop_requested()) return;
    {
      const std::lock_guard lock(mutex_);
      for (UniqueFd& socket : added_) sockets.push_back(std::move(socket));
      added_.clear();
    }
    std::vector<pollfd> fds = {{.fd = wake_.fd(), .events = POLLIN, .revents = 0}};
    for (const UniqueFd& socket : sockets) {
      fds.push_back({.fd = socket.get(), .events = POLLIN, .revents = 0});
    }
    (void)::poll(fds.data(), fds.size(), -1);
    for (const UniqueFd& socket : sockets) AcceptAll(socket);
  }
}

void Acceptor::AcceptAll(const UniqueFd& listening) const {
  while (true) {
    UniqueFd fd(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd.valid()) {
      take_(std::move(fd), listening.get());
      continue;
    }
    // Out of descriptors or memory: poll would come back at once.
    if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) std::this_thread::sleep_for(kAcceptAgain);
    return;
  }
}

}  // namespace muster
