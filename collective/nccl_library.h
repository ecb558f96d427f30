// The functions of NCCL that are used, from a library that is loaded when the program runs.
#pragma once

#include <nccl.h>

#include <string>

#include "base/status.h"

namespace muster {

/// As in nccl.h, of which the library may be older or newer.
struct NcclLibrary {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclCommFinalize) comm_finalize = nullptr;
  decltype(&ncclCommDestroy) comm_destroy = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
};

inline constexpr const char* kNcclFile = "libnccl.so.2";

/// From where the loader looks, or else from /usr/local/cuda. FailedPrecondition: it is in neither, or too
/// old. What has been loaded stays so until the process ends.
absl::StatusOr<NcclLibrary> LoadNccl(const std::string& file = kNcclFile);

}  // namespace muster
