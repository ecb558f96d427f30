// ClusterWatch: looks at the file of --cluster_file, and tells the view of the cluster what it says. What is
// left of connections with hosts that tasks have moved away from is ended before.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "cluster/cluster_view.h"

namespace muster {

/// A file that is not there is none yet. One that is refused, or cannot be read, is said once, with its path
/// and why; what held before goes on to.
class ClusterWatch {
 public:
  /// Has looked at the file once when it returns, and looks ten times a second from then on. `view` must live
  /// longer.
  ClusterWatch(std::string path, ClusterView* view);

 private:
  // What the file is known by: whoever replaces it renames another one into its place.
  struct Identity {
    dev_t device = 0;
    ino_t inode = 0;
    off_t size = 0;
    int64_t changed_ns = 0;
    friend bool operator==(const Identity&, const Identity&) = default;
  };

  void Run(const std::stop_token& stop);
  void Look();
  void EndOldConnections();
  void Complain(const absl::Status& status);

  const std::string path_;
  ClusterView* const view_;
  Identity known_;         // of the file that was read last
  std::string complaint_;  // the last one
  ClusterSpec before_;     // the change that is looked at
  std::optional<ClusterView::Watch> watch_;
  std::jthread thread_;  // the last member: it uses the others
};

}  // namespace muster
