// Collective: what all ranks of a group do together: sums, copies, and waiting for each other.
//
// Every rank begins the same operations in the same order, with the same sizes. What is a matter of
// configuration (order and sizes of the operations of a step) is agreed on when the group is made: see
// `fingerprint` there. A group whose operation failed can do nothing more; it is thrown away, and those that
// are left make another one, under a new generation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"

namespace muster {

/// One operation, as a rank sees it. The memory stays untouched until it is done.
struct Operation {
  enum class Kind { kAllReduce, kBroadcast, kAllGather, kBarrier };
  Kind kind = Kind::kBarrier;
  std::span<const std::byte> input;
  std::span<std::byte> output;
  int root = 0;  // broadcast: whose bytes they are
};

/// output = the sum of the inputs of all ranks, the same bits on each of them. float32, the same size; both
/// may be the same memory, but not overlap otherwise. In which order is summed depends on the size, the ranks
/// and which of them share a host, and on nothing else. Bytes sent: 2 (n - 1) / n of the input, or more where
/// it is small.
Operation AllReduce(std::span<const float> input, std::span<float> output);
/// data = that of `root`.
Operation Broadcast(std::span<std::byte> data, int root);
/// output [size() * input.size()] = the inputs of all ranks, by rank. They do not overlap.
Operation AllGather(std::span<const std::byte> input, std::span<std::byte> output);
/// Ends when all ranks have begun it.
Operation Barrier();

/// The number of an operation in this group; they are done in this order.
using Ticket = uint64_t;

/// Since the group was made, as far as this rank is concerned: through sockets and through shared memory.
struct Traffic {
  uint64_t sent_bytes = 0;
  uint64_t received_bytes = 0;
};

/// One thread at a time, but for Abort. Unavailable: a rank that the text names has gone; DeadlineExceeded:
/// nothing has moved for the time that the group was made with (NCCL: the operation has taken so long), and
/// the text names who was waited for. All later operations fail with the first error.
class Collective {
 public:
  /// What is under way fails; memory of operations is not touched any more.
  virtual ~Collective() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Begins an operation in the background, where `operation` may be gone when this returns.
  virtual Ticket Start(const Operation& operation) = 0;
  /// Until it, and so all before, is done.
  virtual absl::Status Wait(Ticket ticket) = 0;
  /// Start and Wait in one, on this thread: without waking up another one.
  virtual absl::Status Run(const Operation& operation) = 0;

  /// Of what has ended, well or not.
  virtual Traffic traffic() const = 0;

  /// Any thread: what is under way and all that follows fails with `why`, which is not OK, here and, as they
  /// find out, on the other ranks.
  virtual void Abort(const absl::Status& why) = 0;
};

/// A group of one: sums are copies.
std::unique_ptr<Collective> MakeSingleRank();

}  // namespace muster
