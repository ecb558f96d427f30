// From a group that has met to one whose sums go from GPU to GPU, where all of its ranks have one.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "collective/collective.h"
#include "collective/gpu_collectives.h"
#include "collective/interrupt.h"

namespace muster {

enum class CollectiveChoice : uint8_t {
  kAuto,    // NCCL, if there are several ranks and each has a GPU of its own
  kNative,  // never NCCL
  kNccl,    // nothing else
};

/// What a rank brings to every group. Copied with the options that it is a part of, hence shared.
struct GpuPreference {
  /// Not in this process any more.
  void GiveUp(const std::string& why) {
    gpus = nullptr;
    why_none = "NCCL did not work before: " + why;
  }

  CollectiveChoice choice = CollectiveChoice::kAuto;
  std::shared_ptr<GpuCollectives> gpus;  // null: none
  std::string why_none;     // "it computes on the CPU"; empty: it stays only to hear that all is done
  bool may_be_read = true;  // what it sends to other hosts, by those who can listen there
};

/// What ranks tell each other before they choose.
struct GpuCard {
  CollectiveChoice choice = CollectiveChoice::kAuto;
  bool has_gpu = false;
  bool may_be_read = false;
  std::string host, gpu;  // the latter in that host
  std::string why_none;
};

/// Why the ranks with these cards do not use NCCL; empty: they do. A function of the cards, so that all ranks
/// choose the same. `names`: of the ranks.
std::string WhyNotNccl(std::span<const GpuCard> cards, std::span<const std::string> names);

struct ChosenGroup {
  std::unique_ptr<Collective> group;
  bool is_by_gpus = false;
};

/// `met`, or a group of the same ranks by their GPUs, which have met through it within connect_timeout of
/// `options`, whose names are not empty. All ranks get the same. Where the GPUs do not meet, it is `met`, and
/// `preference` knows that for later groups. FailedPrecondition: a rank insists on NCCL, and the text says
/// why it is not possible. Cancelled once `interrupt` is set, which lives longer than the group. Otherwise
/// as operations of `met` fail.
absl::StatusOr<ChosenGroup> PreferGpus(std::unique_ptr<Collective> met, GpuPreference& preference,
                                       const GpuGroupOptions& options, const Interrupt& interrupt);

}  // namespace muster
