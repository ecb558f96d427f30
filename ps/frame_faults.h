// FrameFaults: loses, doubles and delays frames as a network would without TCP, so that tests see how what is
// above gets over it.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/random.h"

namespace muster {

struct FrameFaultOptions {
  double lost = 0, doubled = 0, late = 0;  // shares of all frames
  Duration latest{};  // a late one comes so much later at most, and so do those behind it
  uint64_t seed = 0;
};

/// One direction of a stream. Any thread.
class FrameFaults {
 public:
  /// `deliver`: called by a thread of this object.
  FrameFaults(const FrameFaultOptions& options, uint64_t stream,
              std::function<void(grpc::ByteBuffer)> deliver);
  /// What has not been delivered is lost.
  ~FrameFaults();

  void Pass(const grpc::ByteBuffer& frame);

 private:
  void Run(const std::stop_token& stop);

  const FrameFaultOptions options_;
  const std::function<void(grpc::ByteBuffer)> deliver_;
  std::mutex mutex_;  // guards the following
  std::condition_variable_any changed_;
  RandomStream random_;
  std::deque<std::pair<TimePoint, grpc::ByteBuffer>> frames_;  // due, ascending
  std::jthread thread_;                                        // the last member: it uses the others
};

}  // namespace muster
