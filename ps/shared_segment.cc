#include "ps/shared_segment.h"

namespace muster {

absl::StatusOr<std::unique_ptr<SharedSegment>> SharedSegment::Create(size_t capacity) {
  MUSTER_ASSIGN_OR_RETURN(auto memory, SharedMemory::Create(kHeaderBytes + capacity));
  return std::unique_ptr<SharedSegment>(new SharedSegment(std::move(memory)));
}

absl::StatusOr<std::unique_ptr<SharedSegment>> SharedSegment::Map(UniqueFd fd) {
  MUSTER_ASSIGN_OR_RETURN(auto memory,
                          SharedMemory::Map(std::move(fd), kHeaderBytes, kHeaderBytes + kMaxCapacity));
  return std::unique_ptr<SharedSegment>(new SharedSegment(std::move(memory)));
}

std::span<char> SharedSegment::bytes() const {
  const std::span<std::byte> all = memory_->bytes();
  return {reinterpret_cast<char*>(all.data()) + kHeaderBytes, all.size() - kHeaderBytes};
}

}  // namespace muster
