// Operations in the background for backends that do one at a time.
#pragma once

#include <memory>

#include "collective/collective.h"

namespace muster {

/// Does one operation at a time, on whichever thread calls.
class CollectiveBackend {
 public:
  virtual ~CollectiveBackend() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual Traffic traffic() const { return {}; }
  virtual absl::Status Perform(const Operation& operation) = 0;
  /// Any thread: the Perform that is under way, and all later ones, fail soon.
  virtual void Stop() = 0;
};

/// A thread of its own, made when first something is started, does what is started; whoever waits for what it
/// has not begun with does that instead.
std::unique_ptr<Collective> MakeQueued(std::unique_ptr<CollectiveBackend> backend);

}  // namespace muster
