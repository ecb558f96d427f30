// run, wait and stop: commands that drive a job.
#include <unistd.h>

#include <cstdio>

#include "base/stdout.h"
#include "launcher/commands/context.h"
#include "launcher/commands/detachment.h"
#include "launcher/commands/interrupts.h"
#include "launcher/fleet.h"
#include "launcher/plan.h"
#include "launcher/run_display.h"
#include "launcher/runner.h"
#include "launcher/running_job.h"

namespace muster {
namespace {

RunOptions MakeRunOptions(const CommandContext& context, const record::JobRecord& record) {
  return {.connect = context.connect_options(record),
          .home = context.home(),
          .lost_deadline = FromSeconds(context.flags().lost_timeout_s)};
}

// Gives the plan the identity of the job of its name that has not ended, whose tasks that are as they should
// be are then left alone, or one of its own.
absl::StatusOr<JobLock> ClaimJob(const JobStore& jobs, record::JobRecord* plan) {
  MUSTER_ASSIGN_OR_RETURN(const JobLock deciding, jobs.LockDecision());
  if (const auto newest = jobs.Find(plan->name()); newest.ok() && newest->ended_micros() == 0) {
    MUSTER_ASSIGN_OR_RETURN(JobLock lock, jobs.TakeOver(newest->id()));
    // It may have gone on, or ended, before the lock was ours.
    MUSTER_ASSIGN_OR_RETURN(const record::JobRecord running, jobs.Load(newest->id()));
    if (running.ended_micros() == 0) {
      ContinueJob(running, plan);
      MUSTER_RETURN_IF_ERROR(jobs.Save(*plan));
      return lock;
    }
  }
  MUSTER_RETURN_IF_ERROR(BeginJob(plan));
  MUSTER_ASSIGN_OR_RETURN(JobLock lock, jobs.Lock(plan->id()));
  MUSTER_RETURN_IF_ERROR(jobs.Save(*plan));
  return lock;
}

void PrintResult(const CommandContext& context, const std::string& result_json) {
  if (context.flags().format == OutputFormat::kJson) PrintToStdout(result_json);
}

// Asks the hosts themselves, for when another muster holds the job: that one sees its tasks stopped, or its
// starts refused, and ends.
absl::Status StopDirectly(const CommandContext& context, const record::JobRecord& record) {
  const std::vector<record::Host> hosts(record.hosts().begin(), record.hosts().end());
  agent::Request request;
  request.mutable_stop_tasks()->set_job(record.id());
  request.mutable_stop_tasks()->set_grace_ms(3000);
  // The other muster may be about to start the next generation.
  request.mutable_stop_tasks()->set_minimum_generation(record.cluster().generation() + 2);
  const auto statuses =
      AskHosts(hosts, context.connect_options(record), context.connect_timeout(),
               [&](size_t i, AgentConnection& connection) -> absl::Status {
                 MUSTER_ASSIGN_OR_RETURN(const agent::Response response,
                                         connection.Call(request, Now() + std::chrono::seconds(30)));
                 const agent::StopTasksResponse& stopped = response.stop_tasks();
                 if (stopped.processes_left() == 0 && stopped.ports_left() == 0) return absl::OkStatus();
                 return Internal("%s: %d processes of the job are left, and %d of its ports are listened on",
                                 hosts[i].name(), stopped.processes_left(), stopped.ports_left());
               });
  for (const absl::Status& status : statuses) {
    if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  }
  return FirstFailure(statuses);
}

// Once every task runs. All of them must outlive the run with these options.
void GoOnInBackground(const std::string& job, const JobLock& lock, Detachment& detachment,
                      RunDisplay& display, RunOptions* options) {
  const auto say_driver = [&lock](bool in_background) {
    const absl::Status said = lock.SetInBackground(in_background);
    if (!said.ok()) std::fprintf(stderr, "%s\n", std::string(said.message()).c_str());
  };
  options->on_everything_runs = [job, say_driver, &detachment, &display] {
    display.GoToLog();
    std::fprintf(stderr, "job %s runs; `muster logs -f %s` follows it, `muster wait %s` waits for its end\n",
                 job.c_str(), job.c_str(), job.c_str());
    detachment.Detach([&] { say_driver(true); });
  };
  // Who took over now would take it for a job to be run again, and what it has made would not be fetched.
  options->on_ending = [say_driver] { say_driver(false); };
}

// As JobStore does it, but not while another muster decides who drives the job.
absl::StatusOr<JobLock> InTurn(const JobStore& jobs, const std::string& job,
                               absl::StatusOr<JobLock> (JobStore::*lock)(const std::string& id) const) {
  MUSTER_ASSIGN_OR_RETURN(const JobLock deciding, jobs.LockDecision());
  return (jobs.*lock)(job);
}

}  // namespace

absl::StatusOr<int> RunJobCommand(const CommandContext& context) {
  const TimePoint start = Now();
  std::unique_ptr<Detachment> detachment;
  if (context.flags().detach) {
    int exit_code = 0;
    MUSTER_ASSIGN_OR_RETURN(detachment, Detachment::Fork(&exit_code));
    if (detachment == nullptr) return exit_code;
  }
  MUSTER_ASSIGN_OR_RETURN(const Job job, context.ReadJobFlag());
  MUSTER_ASSIGN_OR_RETURN(const Inventory inventory, context.ReadInventoryFlag());
  MUSTER_ASSIGN_OR_RETURN(JobPlan plan, MakePlan(job, inventory,
                                                 {.installation = context.installation(),
                                                  .data_folder = context.data_folder(),
                                                  .data_cache = context.data_cache()}));
  MUSTER_ASSIGN_OR_RETURN(const JobLock lock, ClaimJob(context.jobs(), &plan.record));
  std::fprintf(stderr, "job %s: %d tasks on %d hosts\n", plan.record.id().c_str(), plan.record.tasks_size(),
               plan.record.hosts_size());
  if (!plan.data.empty()) std::fprintf(stderr, "data: %s\n", plan.data.c_str());

  RunOptions options = MakeRunOptions(context, plan.record);
  StopWhenInterrupted(&options);
  options.run_deadline = FromSeconds(context.flags().timeout_s);
  options.follow_logs = detachment == nullptr;
  RunDisplay display({.logs = !context.flags().quiet,
                      .accuracy = context.flags().format == OutputFormat::kText,
                      .train_steps = static_cast<uint64_t>(job.train.steps.value_or(0)),
                      .start = start,
                      .first_start = plan.record.cluster().generation() == 0},
                     plan.record);
  if (detachment != nullptr) {
    MUSTER_RETURN_IF_ERROR(detachment->OpenLog(context.jobs().JobFolder(plan.record.id()) / kControllerLog));
    GoOnInBackground(plan.record.id(), lock, *detachment, display, &options);
  }
  MUSTER_ASSIGN_OR_RETURN(const RunResult result,
                          RunJob(context.jobs(), plan.record, plan.contents, options, display));
  display.Summarize(result);
  PrintResult(context, result.result_json);
  MUSTER_RETURN_IF_ERROR(result.fetched);
  return result.outcome.exit_code;
}

absl::StatusOr<int> WaitCommand(const CommandContext& context) {
  const TimePoint start = Now();
  MUSTER_ASSIGN_OR_RETURN(record::JobRecord record, context.jobs().Find(context.flags().job));
  auto lock = InTurn(context.jobs(), record.id(), &JobStore::Lock);
  if (const auto driver = context.jobs().DriverOf(record.id()); !lock.ok() && driver) {
    std::fprintf(stderr, "job %s is driven by process %d\n", record.id().c_str(), driver->pid);
  }
  // Another muster drives it, and will write down how it ends.
  const std::optional<Duration> timeout = FromSeconds(context.flags().timeout_s);
  while (absl::IsFailedPrecondition(lock.status()) && record.ended_micros() == 0) {
    if (timeout && Now() - start > *timeout) return DeadlineExceeded("job %s has not ended", record.id());
    ::usleep(200'000);
    MUSTER_ASSIGN_OR_RETURN(record, context.jobs().Load(record.id()));
    lock = InTurn(context.jobs(), record.id(), &JobStore::Lock);
  }
  if (!lock.ok() && record.ended_micros() == 0) return lock.status();
  if (lock.ok()) {
    // What it was before the lock was ours, it may be no longer.
    MUSTER_ASSIGN_OR_RETURN(record, context.jobs().Load(record.id()));
  }
  if (record.ended_micros() == 0) {
    RunOptions options = MakeRunOptions(context, record);
    options.follow_logs = false;
    if (timeout) options.give_up_at = start + *timeout;
    RunDisplay display(
        {.logs = false, .accuracy = context.flags().format == OutputFormat::kText, .start = start}, record);
    MUSTER_ASSIGN_OR_RETURN(const RunResult result, RunJob(context.jobs(), record, {}, options, display));
    display.Summarize(result);
    PrintResult(context, result.result_json);
    MUSTER_RETURN_IF_ERROR(result.fetched);
    return result.outcome.exit_code;
  }
  std::fprintf(stderr, "%s\n", record.cluster().ending().message().c_str());
  if (const auto json = ReadFile(context.jobs().JobFolder(record.id()) / kResultFile); json.ok()) {
    PrintResult(context, *json);
  } else if (!absl::IsNotFound(json.status())) {
    return json.status();  // a job that wrote no result has none
  }
  return record.cluster().ending().exit_code();
}

absl::Status StopCommand(const CommandContext& context) {
  MUSTER_ASSIGN_OR_RETURN(record::JobRecord record, context.jobs().Find(context.flags().job));
  const auto lock = InTurn(context.jobs(), record.id(), &JobStore::TakeOver);
  if (lock.ok()) {
    MUSTER_ASSIGN_OR_RETURN(record, context.jobs().Load(record.id()));
  }
  if (!lock.ok() || record.ended_micros() != 0) {
    // Held by another muster, or ended: then this only makes sure.
    MUSTER_RETURN_IF_ERROR(StopDirectly(context, record));
  } else {
    RunOptions options = MakeRunOptions(context, record);
    StopWhenInterrupted(&options);
    options.stop = true;
    options.follow_logs = false;
    RunDisplay display({.logs = false, .start = Now()}, record);
    MUSTER_ASSIGN_OR_RETURN(const RunResult result, RunJob(context.jobs(), record, {}, options, display));
    if (!result.outcome.left_behind.empty()) {
      display.Summarize(result);
      return Unavailable("not every host could be reached");
    }
  }
  std::fprintf(stderr, "job %s: 0 processes, 0 ports on %d hosts\n", record.id().c_str(),
               record.hosts_size());
  return absl::OkStatus();
}

}  // namespace muster
