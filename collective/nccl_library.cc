#include "collective/nccl_library.h"

#include <dlfcn.h>

namespace muster {
namespace {

constexpr const char* kToolkitFolder = "/usr/local/cuda/lib64/";
// Of 2023: what is begun without waiting can also be given up.
constexpr int kLeastVersion = NCCL_VERSION(2, 18, 0);

template <typename Function>
absl::Status Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function != nullptr) return absl::OkStatus();
  return FailedPrecondition("the NCCL of this host has no %s: it needs version %d.%d or newer", name,
                            kLeastVersion / 10000, kLeastVersion / 100 % 100);
}

}  // namespace

absl::StatusOr<NcclLibrary> LoadNccl(const std::string& file) {
  void* library = ::dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) {
    library = ::dlopen((kToolkitFolder + file).c_str(), RTLD_LAZY | RTLD_LOCAL);
  }
  if (library == nullptr) {
    return FailedPrecondition(
        "NCCL is missing on this host (%s is neither where the loader looks, see LD_LIBRARY_PATH, nor in %s)",
        file, kToolkitFolder);
  }
  NcclLibrary nccl;
  MUSTER_RETURN_IF_ERROR(Find(library, "ncclGetVersion", nccl.get_version));
  int version = 0;
  if (nccl.get_version(&version) != ncclSuccess || version < kLeastVersion) {
    return FailedPrecondition("the NCCL of this host, version code %d, is too old: it needs %d.%d or newer",
                              version, kLeastVersion / 10000, kLeastVersion / 100 % 100);
  }
  MUSTER_RETURN_IF_ERROR(Find(library, "ncclGetUniqueId", nccl.get_unique_id));
  MUSTER_RETURN_IF_ERROR(Find(library, "ncclCommInitRankConfig", nccl.comm_init_rank_config));
  MUSTER_RETURN_IF_ERROR(Find(library, "ncclCommGetAsyncError", nccl.comm_get_async_error));
  MUSTER_RETURN_IF_ERROR(Find(library, "ncclCommFinalize", nccl.comm_finalize));
  MUSTER_RETURN_IF_ERROR(Find(library, "ncclCommDestroy", nccl.comm_destroy));
  MUSTER_RETURN_IF_ERROR(Find(library, "ncclCommAbort", nccl.comm_abort));
  MUSTER_RETURN_IF_ERROR(Find(library, "ncclGetErrorString", nccl.get_error_string));
  MUSTER_RETURN_IF_ERROR(Find(library, "ncclGetLastError", nccl.get_last_error));
  MUSTER_RETURN_IF_ERROR(Find(library, "ncclAllReduce", nccl.all_reduce));
  MUSTER_RETURN_IF_ERROR(Find(library, "ncclBroadcast", nccl.broadcast));
  MUSTER_RETURN_IF_ERROR(Find(library, "ncclAllGather", nccl.all_gather));
  return nccl;
}

}  // namespace muster
