// CUDA and NCCL as far as nccl.cc uses them, made of threads and the host's memory, so that what it does with
// them can be watched where there is no GPU. A program is linked with this instead of them.
#pragma once

#include <nccl.h>

namespace muster {

inline constexpr int kFakeGpus = 8;

/// Of all communicators from now on: each operation of `rank` fails with this; ncclSuccess: none.
void FailFakeNccl(int rank, ncclResult_t result);

/// Communicators that were made and are neither destroyed nor aborted.
int FakeCommunicators();

}  // namespace muster
