// NCCL behind the interface of collective.h: sums between GPUs, over NVLink, PCIe or the network. It encrypts
// nothing and takes one rank for each GPU. Part of the CUDA module; built where nvcc and nccl.h are
// (MUSTER_NCCL).
//
// Every call is made without waiting, and what it began is asked about until it is done, has failed, or is
// given up: at a deadline, by Stop, or when the group is over. Then the communicator is aborted. NCCL does
// not always see that another rank has gone; whoever makes the group does, and sets its interrupt.
#pragma once

#include <memory>

#include "collective/gpu_collectives.h"

namespace muster {

/// By NCCL, which is loaded here, on GPU `device` of this process. FailedPrecondition: there is no NCCL, as
/// LoadNccl says. Internal: there is no such GPU, or it has failed.
///
/// Memory of operations is the host's, which is copied through pinned buffers on a stream of the group's own;
/// or that of this GPU, both `input` and `output`, and all that writes to it has ended: then nothing is
/// copied. In which order is summed is NCCL's choice.
absl::StatusOr<std::unique_ptr<GpuCollectives>> MakeNccl(int device);

}  // namespace muster
