// Which GPUs a host has, in the words of its driver.
//
// The agent is a static program and can load no library of the host, so nvidia-smi is asked, which comes with
// the driver and has NVML loaded. Its device indices are those of CUDA with CUDA_DEVICE_ORDER=PCI_BUS_ID.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "launcher/transport/transport.h"

namespace muster {

struct Gpu {
  int index = 0;
  std::string name;           // "NVIDIA H100 80GB HBM3"
  uint64_t memory_bytes = 0;  // 0: it does not say
  std::string driver;         // "550.54.15"
};

/// For AskForGpus: a driver that no program has open takes seconds for each of them.
inline constexpr Duration kGpusTimeout = std::chrono::seconds(60);

/// By index. None where there is no nvidia-smi. Unavailable: the host, or nvidia-smi fails, with its words.
/// Cancelled: `cancel_fd` (-1: none) has become readable.
absl::StatusOr<std::vector<Gpu>> AskForGpus(Transport& transport, TimePoint deadline, int cancel_fd = -1);

/// What nvidia-smi prints. Unavailable: it is nothing that it prints.
absl::StatusOr<std::vector<Gpu>> ParseGpus(const std::string& csv);

/// For people, alike GPUs together: "2x NVIDIA H100 80GB HBM3 (79.6 GiB), driver 550.54.15".
std::vector<std::string> DescribeGpus(const std::vector<Gpu>& gpus);

}  // namespace muster
