// Gloo behind the same interface: what the native backend is compared with, in tests and benchmarks. It has
// neither TLS nor shared memory, an abort does not end what is under way, and errors name nobody. Built where
// the library is (MUSTER_GLOO).
#pragma once

#include <filesystem>
#include <memory>

#include "base/clock.h"
#include "collective/collective.h"

namespace muster {

struct GlooOptions {
  int rank = 0;
  int size = 1;
  std::filesystem::path meeting_folder;  // of this group alone, empty at first; all ranks can write there
  std::string address = "127.0.0.1";     // of this rank
  Duration timeout = std::chrono::minutes(1);
};

/// A program that uses this ignores SIGPIPE: Gloo writes to ranks that may be gone.
absl::StatusOr<std::unique_ptr<Collective>> MakeGloo(const GlooOptions& options);

}  // namespace muster
