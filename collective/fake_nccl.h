// NCCL as far as nccl.cc uses it, on the streams of kernels/cuda/fake_cuda.h, so that what it does can be
// watched where there is no GPU. A program is linked with this instead of nccl_library.cc.
#pragma once

#include <nccl.h>

namespace muster {

/// Of all communicators from now on: each operation of `rank` fails with this; ncclSuccess: none.
void FailFakeNccl(int rank, ncclResult_t result);

/// Communicators that were made and are neither destroyed nor aborted.
int FakeCommunicators();

}  // namespace muster
