// Acceptor: takes connections at any number of listening sockets.
#pragma once

#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/wake.h"

namespace muster {

class Acceptor {
 public:
  /// `take` gets each connection, which does not block, and the number of the socket that listens. Called by
  /// the acceptor's thread, until the destructor has returned.
  using Take = std::function<void(UniqueFd connection, int listening)>;
  explicit Acceptor(Take take);
  ~Acceptor();

  /// From now on there as well. `listening` does not block. Any thread.
  void Add(UniqueFd listening);

 private:
  void Run(const std::stop_token& stop);
  void AcceptAll(const UniqueFd& listening) const;

  const Take take_;
  Wake wake_;
  std::mutex mutex_;
  std::vector<UniqueFd> added_;  // which the thread has not taken yet
  std::jthread thread_;          // the last member: it uses the others
};

}  // namespace muster
