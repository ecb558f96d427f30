// SharedSegment: memory of two processes on one host, for one frame at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>

#include "base/shared_memory.h"

namespace muster {

/// Made by who sends, mapped by who receives. Any thread.
class SharedSegment {
 public:
  static constexpr size_t kMaxCapacity = size_t{5} << 29;  // a quarter more than the largest frame

  /// With room for `capacity` bytes. Fails as SharedMemory::Create does.
  static absl::StatusOr<std::unique_ptr<SharedSegment>> Create(size_t capacity);

  /// What another process has made. Fails as SharedMemory::Map does.
  static absl::StatusOr<std::unique_ptr<SharedSegment>> Map(UniqueFd fd);

  std::span<char> bytes() const;

  /// Of a created one: for the other process. Closed, the mapping stays.
  int fd() const { return memory_->fd(); }
  void CloseFd() { memory_->CloseFd(); }

  /// The receiver has let go of the last frame. Only the sender makes it false, which there is one of.
  bool is_free() const { return header()->in_use.load(std::memory_order_acquire) == 0; }
  void Acquire() { header()->in_use.store(1, std::memory_order_relaxed); }
  /// By the receiver: it reads no more.
  void Release() { header()->in_use.store(0, std::memory_order_release); }

 private:
  struct Header {
    std::atomic<uint32_t> in_use;
  };
  static_assert(std::atomic<uint32_t>::is_always_lock_free, "it works between processes");
  static constexpr size_t kHeaderBytes = 64;  // the frame begins at a cache line of its own

  explicit SharedSegment(std::unique_ptr<SharedMemory> memory) : memory_(std::move(memory)) {}
  Header* header() const { return reinterpret_cast<Header*>(memory_->bytes().data()); }

  const std::unique_ptr<SharedMemory> memory_;
};

}  // namespace muster
