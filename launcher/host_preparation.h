// What hosts need before anything can run on them: the agent, and contents. For hosts that no job has tasks
// on yet; what a job has is its reconciler's to bring about.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "launcher/contents.h"
#include "launcher/runner.h"
#include "proto/job_record.pb.h"

namespace muster {

struct PreparationOptions {
  std::string job;             // on whose behalf
  std::string required_glibc;  // "": any
  ConnectOptions connect;
  Duration connect_timeout{};
  Duration contents_timeout = std::chrono::minutes(30);
  const std::atomic<int>* interrupts = nullptr;  // as in RunOptions
  int interrupt_fd = -1;
};

/// Brings all contents to all hosts, which pass them on to each other, at once. The statuses are in the order
/// of the hosts: why one has not got everything; Cancelled: interrupted, all that were not done. The observer
/// hears of facts and uploads.
std::vector<absl::Status> PrepareHosts(const std::vector<record::Host>& hosts, const Contents& contents,
                                       const PreparationOptions& options, RunObserver& observer);

}  // namespace muster
