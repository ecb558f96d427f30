// Prefetcher: the batches of a training, each filled while the one before it is computed with.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <stop_token>
#include <thread>
#include <vector>

#include "trainer/data/batch.h"
#include "trainer/data/dataset.h"
#include "trainer/data/sample_order.h"

namespace muster {

/// Used by one thread, its owner's. Fills with a thread of its own, or, told not to, with the owner's; the
/// batches are the same. Nothing here can fail, and no wait, that for the thread's end included, is longer
/// than a batch takes to fill.
class Prefetcher {
 public:
  /// `dataset` and `order` must outlive this object. Each batch lies in `buffer` or, with a thread, in one of
  /// two like it.
  Prefetcher(const Dataset& dataset, const SampleOrder& order, BatchBuffer buffer, bool with_thread);

  /// The samples at `positions`, valid until the next call. The thread then begins with those at `next`: a
  /// guess, since a call that asks for others, or comes before the thread has begun, fills them itself.
  Batch Take(SampleRange positions, SampleRange next);

 private:
  void Run(const std::stop_token& stop);

  const Dataset& dataset_;
  const SampleOrder& order_;
  std::vector<BatchBuffer> buffers_;  // one; with a thread two
  int taken_ = 0;                     // the buffer of the last batch; the thread fills the other one

  std::mutex mutex_;
  std::condition_variable_any changed_;
  // Guarded by mutex_.
  std::optional<SampleRange> wanted_;
  bool filling_ = false;  // then buffers_[1 - taken_] and filled_ are the thread's

  std::optional<Batch> filled_;  // lies in buffers_[1 - taken_]
  std::jthread thread_;          // last: it uses all of the above
};

}  // namespace muster
