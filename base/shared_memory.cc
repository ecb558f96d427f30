#include "base/shared_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

namespace muster {

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::MapFd(UniqueFd fd, size_t size) {
  // Populated: a page fault for each 4 KiB that is used first would cost more than to copy them.
  void* const memory =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd.get(), /*offset=*/0);
  if (memory == MAP_FAILED) {
    const int error = errno;
    return ErrnoError(error, absl::StrFormat("mmap of %d shared bytes", size));
  }
  return std::unique_ptr<SharedMemory>(new SharedMemory(std::move(fd), memory, size));
}

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Create(size_t size) {
  UniqueFd fd(::memfd_create("muster-shared", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) {
    const int error = errno;
    return ErrnoError(error, "memfd_create");
  }
  if (::ftruncate(fd.get(), static_cast<off_t>(size)) != 0 ||
      ::fallocate(fd.get(), 0, 0, static_cast<off_t>(size)) != 0 ||  // or writing to it could fail: SIGBUS
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    const int error = errno;
    return ErrnoError(error, absl::StrFormat("shared memory of %d bytes", size));
  }
  return MapFd(std::move(fd), size);
}

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Map(UniqueFd fd, size_t min_size,
                                                                size_t max_size) {
  struct stat status {};
  struct statfs system {};
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(fd.get(), &status) != 0 ||
      ::fstatfs(fd.get(), &system) != 0 || system.f_type != TMPFS_MAGIC ||
      status.st_size < static_cast<off_t>(min_size) || status.st_size > static_cast<off_t>(max_size)) {
    return InvalidArgument("a file that is no sealed shared memory");
  }
  MUSTER_ASSIGN_OR_RETURN(auto memory, MapFd(std::move(fd), static_cast<size_t>(status.st_size)));
  memory->CloseFd();
  return memory;
}

SharedMemory::~SharedMemory() { ::munmap(memory_, size_); }

}  // namespace muster
