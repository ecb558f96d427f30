// The file that says where the tasks of a job are now (--cluster_file). Who writes it replaces it as a whole:
//
//     {"version": 1, "generation": 7, "cluster": {"ps": ["10.0.0.1:20001"], "worker": ["10.0.0.2:20002"]}}
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "cluster/cluster_spec.h"

namespace muster {

inline constexpr uint64_t kClusterFileVersion = 1;

struct ClusterFile {
  uint64_t generation = 0;  // a higher one replaces a lower one
  ClusterSpec cluster;
};

/// Roles are "ps", "worker" and "chief"; one without tasks may be left out. Keys beside the three are
/// ignored. InvalidArgument: no such text; an address that is none, or that two tasks have.
/// FailedPrecondition: it is of another version; the text has both.
absl::StatusOr<ClusterFile> ParseClusterFile(const std::string& text);

/// One line, with its end.
std::string FormatClusterFile(const ClusterFile& file);

}  // namespace muster
