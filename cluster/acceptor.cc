#include "cluster/acceptor.h"

#include <poll.h>

#include <utility>

#include "cluster/listening.h"

namespace muster {

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
  for (UniqueFd fd = AcceptNext(listening.get()); fd.valid(); fd = AcceptNext(listening.get())) {
    take_(std::move(fd), listening.get());
  }
}

}  // namespace muster
