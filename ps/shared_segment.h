// SharedSegment: memory of two processes on one host, for one frame at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>

#include "base/file.h"
#include "base/status.h"

namespace muster {

/// Made by who sends, mapped by who receives, gone when neither has it any more, however they end. Any
/// thread.
class SharedSegment {
 public:
  static constexpr size_t kMaxCapacity = size_t{5} << 29;  // a quarter more than the largest frame

  /// With room for `capacity` bytes, which are in memory when this returns. ResourceExhausted: no memory.
  static absl::StatusOr<std::unique_ptr<SharedSegment>> Create(size_t capacity);

  /// What another process has made. InvalidArgument: not by this class; such memory could shrink while it is
  /// being read.
  static absl::StatusOr<std::unique_ptr<SharedSegment>> Map(UniqueFd fd);

  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  std::span<char> bytes() const;

  /// Of a created one: for the other process. Closed, the mapping stays.
  int fd() const { return fd_.get(); }
  void CloseFd() { fd_.reset(); }

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

  SharedSegment(UniqueFd fd, void* memory, size_t size) : fd_(std::move(fd)), memory_(memory), size_(size) {}
  static absl::StatusOr<std::unique_ptr<SharedSegment>> MapFd(UniqueFd fd, size_t size);
  Header* header() const { return static_cast<Header*>(memory_); }

  UniqueFd fd_;
  void* const memory_;
  const size_t size_;
};

}  // namespace muster
