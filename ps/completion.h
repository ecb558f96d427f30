// Completion: what happens when an operation that was started on one of gRPC's completion queues has ended.
#pragma once

#include <functional>

namespace muster {

/// Its address is the operation's tag. It stays where it is while the operation is under way.
struct Completion {
  std::function<void(bool ok)> done;  // by the thread that takes it out of the queue

  void* tag() { return this; }
  static void Run(void* tag, bool ok) { static_cast<Completion*>(tag)->done(ok); }
};

}  // namespace muster
