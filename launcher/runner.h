// Runs a job: a reconciler, a session per host, and the record that both outlive.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "launcher/contents.h"
#include "launcher/host_session.h"
#include "launcher/job_store.h"
#include "launcher/reconciler/messages.h"
#include "launcher/run_observer.h"
#include "proto/job_record.pb.h"

namespace muster {

/// Of a job that runs, for GrowJob.
struct NewPlan {
  record::JobRecord record;
  std::string what;   // comes with it, for people
  absl::Status rest;  // why hosts that the inventory names are not in it yet
};

struct RunOptions {
  ConnectOptions connect;
  bool stop = false;                         // only stop what runs
  std::function<void()> on_everything_runs;  // called once, when every task has been started
  bool leave_running = false;       // returns when every task runs; the job goes on, and nobody drives it
  std::function<void()> on_ending;  // called once, as soon as it is decided how the job ends
  /// Once everything runs, other processes of this user may run commands through the connections, and those
  /// that have not ended keep them when the job has. Outlives the run. Null: they may not.
  GuestKeeper* guests = nullptr;
  /// Set, and interrupt_fd readable: returns at once; the job goes on, and nobody drives it. Null: never.
  const std::atomic<bool>* leave = nullptr;
  bool follow_logs = true;
  bool fetch_task_metrics = false;       // of all tasks, once the job has succeeded
  std::optional<Duration> run_deadline;  // then the job is stopped and 124 returned
  std::optional<TimePoint> give_up_at;   // then DeadlineExceeded is returned, and the job goes on
  std::string home;  // what "~" stands for in the inventory; empty: nobody looks where hosts have moved to
  std::optional<Duration> lost_deadline;  // for a host that is lost to come back; unset: the reconciler's
  /// Called on a thread of its own while everything runs, one call at a time, with the hosts that the
  /// inventory names: once, whenever others come or go, and again a while after an error or a plan with
  /// a rest, which is told once. Once `cancel_fd` is readable nobody wants to know any more.
  /// Nothing: the job goes on as it is. Null: always.
  std::function<absl::StatusOr<std::optional<NewPlan>>(const std::set<std::string>& hosts,
                                                       const record::JobRecord& running, int cancel_fd)>
      replan;
  const std::atomic<int>* interrupts =
      nullptr;            // signals so far: the first stops the job, a later one gives up
  int interrupt_fd = -1;  // readable when that grows
};

struct RunResult {
  bool is_left = false;  // as leave_running or leave have it; then all else is empty
  reconcile::Outcome outcome;
  absl::Status fetched;     // whether what the chief wrote has come back; else the job has not ended
  std::string result_json;  // the chief's, if all of it has come
  /// The last lines that the task printed which was the first cause of a failure.
  std::vector<std::string> last_words;
  /// Of each task, what it counted last (task_metrics.h), if it was asked for and all of it has come.
  std::map<std::string, std::string> task_metrics;
};

/// `record` is saved before anything is started and whenever the cluster changes; with the outcome at the
/// end. Where an older record of the job is there, it need not be written to stop what runs, or to watch over
/// it. Another muster may have it stopped (JobStore::AskToStop). The chief's result, metrics, curves and
/// model are fetched into the job's folder. Cancelled: the second interrupt.
absl::StatusOr<RunResult> RunJob(const JobStore& store, record::JobRecord record, const Contents& contents,
                                 const RunOptions& options, RunObserver& observer);

}  // namespace muster
