// SharedMemory: memory of several processes on one host.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/file.h"
#include "base/status.h"

namespace muster {

/// Made by one process, mapped by those that are given its descriptor; gone when none of them has it any
/// more, however they end. Its size is sealed, so that it cannot shrink under who reads it. Any thread.
class SharedMemory {
 public:
  /// `size` bytes, zero, which are in memory when this returns. ResourceExhausted: there is no such memory.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Create(size_t size);

  /// What another process has made. InvalidArgument: not by this class, or of another size than
  /// [`min_size`, `max_size`].
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Map(UniqueFd fd, size_t min_size, size_t max_size);

  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(memory_), size_}; }

  /// Of a created one: for the other processes. Closed, the mapping stays.
  int fd() const { return fd_.get(); }
  void CloseFd() { fd_.reset(); }

 private:
  SharedMemory(UniqueFd fd, void* memory, size_t size) : fd_(std::move(fd)), memory_(memory), size_(size) {}
  static absl::StatusOr<std::unique_ptr<SharedMemory>> MapFd(UniqueFd fd, size_t size);

  UniqueFd fd_;
  void* const memory_;
  const size_t size_;
};

}  // namespace muster
