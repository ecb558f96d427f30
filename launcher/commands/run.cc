// run and up: what a file says is brought about.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>

#include "launcher/commands/controlling.h"
#include "launcher/commands/driving.h"
#include "launcher/commands/interrupts.h"
#include "launcher/commands/replanning.h"
#include "launcher/fleet.h"
#include "launcher/host_preparation.h"
#include "launcher/host_records.h"
#include "launcher/running_job.h"

namespace muster {
namespace {

// A host of standing servers may be away for as long as somebody may take to mend it.
constexpr double kStandingLostS = 7 * 24 * 3600;

// Of standing servers: none of them is started again, or comes or goes, while they train; nor does another
// machine come to drive them, which would not follow the job's.
absl::Status CheckNotTraining(const JobStore& jobs, const record::JobRecord& running,
                              const record::JobRecord& plan, bool stays) {
  if (!running.standing() || (stays && HasSameTasks(running, plan))) return absl::OkStatus();
  const auto trained = FindTrainedBy(jobs, running.id());
  if (!trained) return absl::OkStatus();
  return FailedPrecondition("%s trains job %s, and %s: first `muster wait %s`, or `muster stop %s`",
                            running.id(), trained->id(),
                            stays ? "some of its servers would be started again, or others come or go"
                                  : "would be driven from elsewhere",
                            trained->id(), trained->id());
}

// Who drives a job sees where its servers are.
absl::Status CheckDrivenTogether(const CommandContext& context, const record::JobRecord& servers) {
  const std::string there = ControllerName(servers);
  if (context.flags().controller == there) return absl::OkStatus();
  return InvalidArgument(
      "the servers of %s are driven by %s, and so are the jobs that they train: `muster run %s--cluster %s "
      "JOB`",
      servers.id(), there.empty() ? "this machine" : there, there.empty() ? "" : "-d --on " + there + " ",
      servers.id());
}

// The job of the plan's name that has not ended, whose tasks that are as they should be are then left alone,
// or one of its own.
absl::StatusOr<JobLock> ClaimJob(const CommandContext& context, const std::string& name,
                                 const Planning& planning, JobPlan* plan) {
  const JobStore& jobs = context.jobs();
  // Before anybody is sent away: what is wrong with the files stops nothing.
  MUSTER_ASSIGN_OR_RETURN(std::optional<record::JobRecord> before, FindUnended(jobs, name));
  MUSTER_ASSIGN_OR_RETURN(*plan, planning(before ? &*before : nullptr));
  const bool stays = before && ControllerName(*before) == context.flags().controller;
  record::JobRecord there;
  if (before) {
    // Once it has been taken back, nobody drives it.
    MUSTER_RETURN_IF_ERROR(CheckNotTraining(jobs, *before, plan->record, stays));
    MUSTER_RETURN_IF_ERROR(
        Annotate(jobs.CheckRoom(*before), absl::StrFormat("job %s goes on as it is", before->id())));
    MUSTER_RETURN_IF_ERROR(CheckOwnLogins(context, *before, plan->record));
    there = *before;
  }
  MUSTER_ASSIGN_OR_RETURN(const JobLock deciding, TakeBack(context, &there));
  // Another job may have got the servers since this one was planned.
  if (plan->record.has_servers()) MUSTER_RETURN_IF_ERROR(CheckFree(jobs, plan->record.servers().job(), name));
  MUSTER_ASSIGN_OR_RETURN(std::optional<record::JobRecord> now, FindUnended(jobs, name));
  if (now) {
    if (!before || before->id() != now->id()) {
      MUSTER_ASSIGN_OR_RETURN(*plan, planning(&*now));
    }
    absl::Status may = CheckNotTraining(jobs, *now, plan->record, stays);
    // Who drives it is about to fetch them.
    if (!jobs.DriverOf(now->id())) may.Update(CheckFetched(*now));
    const bool is_undriven = before && !ControllerName(*before).empty();
    if (!may.ok()) return is_undriven ? Undriven(may, now->id()) : may;
    MUSTER_ASSIGN_OR_RETURN(std::optional<TakenJob> taken, TakeOverJob(jobs, *now, planning, plan));
    if (taken) MUSTER_RETURN_IF_ERROR(CheckFetched(taken->running));
    if (taken && !taken->planned.ok()) return Undriven(taken->planned, now->id());
    if (taken && now->job_file() != plan->record.job_file()) {
      std::fprintf(stderr, "job %s runs, of %s: it is taken over, and what differs is started again\n",
                   now->id().c_str(), now->job_file().c_str());
    }
    if (taken) return std::move(taken->lock);
    before = std::move(now);
  }
  // It has ended meanwhile.
  if (before) {
    MUSTER_ASSIGN_OR_RETURN(*plan, planning(nullptr));
  }
  MUSTER_RETURN_IF_ERROR(BeginJob(&plan->record));
  MakeNewest(jobs, &plan->record);
  GiveNumber(jobs, &plan->record);
  MUSTER_ASSIGN_OR_RETURN(JobLock lock, jobs.Lock(plan->record.id()));
  MUSTER_RETURN_IF_ERROR(jobs.Save(plan->record));
  return lock;
}

// Every host of the inventory, so that a job that the servers train finds there what it needs. The exit code
// says whether all are; those that are not are in nobody's way.
int SetHostsUp(const CommandContext& context, const Inventory& inventory, const JobPlan& plan,
               const RunOptions& run, RunDisplay& display) {
  const std::vector<record::Host> hosts = AllHosts(inventory);
  const std::vector<absl::Status> statuses = PrepareHosts(hosts, plan.contents,
                                                          {.job = plan.record.id(),
                                                           .required_glibc = plan.record.required_glibc(),
                                                           .connect = context.connect_options(hosts),
                                                           .connect_timeout = context.connect_timeout(),
                                                           .interrupts = run.interrupts,
                                                           .interrupt_fd = run.interrupt_fd},
                                                          display);
  size_t ready = 0;
  for (size_t i = 0; i < hosts.size(); ++i) {
    ready += statuses[i].ok();
    if (!statuses[i].ok()) {
      std::fprintf(stderr, "%s is not set up: %s\n", hosts[i].name().c_str(),
                   std::string(statuses[i].message()).c_str());
    }
  }
  std::fprintf(stderr, "%zu of %zu hosts are set up\n", ready, hosts.size());
  return ExitCodeFor(FirstFailure(statuses));
}

// Of servers that train a job, and stay as they are: only the hosts are set up. Whoever drives the servers
// goes on: the job would be without them meanwhile, or for good, if this process was interrupted. Nothing:
// they are to be brought about.
absl::StatusOr<std::optional<int>> SetHostsUpBesideTraining(const CommandContext& context, const Job& job,
                                                            const Inventory& inventory,
                                                            const Planning& planning) {
  const JobStore& jobs = context.jobs();
  MUSTER_ASSIGN_OR_RETURN(const auto before, FindUnended(jobs, job.name));
  if (!before || ControllerName(*before) != context.flags().controller) return std::nullopt;
  const bool is_driven = IsDrivenElsewhere(*before) || jobs.DriverOf(before->id()).has_value();
  const auto trained = FindTrainedBy(jobs, before->id());
  if (!is_driven || !trained) return std::nullopt;
  MUSTER_ASSIGN_OR_RETURN(JobPlan plan, planning(&*before));
  if (!HasSameTasks(*before, plan.record)) return std::nullopt;
  plan.record.set_id(before->id());
  RunOptions options = MakeRunOptions(context, plan.record);
  StopWhenInterrupted(&options);
  RunDisplay display({.logs = false, .start = Now()}, plan.record);
  const int exit_code = SetHostsUp(context, inventory, plan, options, display);
  std::fprintf(stderr, "the servers of %s stand, and train job %s\n", before->id().c_str(),
               trained->id().c_str());
  return exit_code;
}

// False: it was interrupted, or another muster has told it to stop the job, which is this process's yet.
absl::StatusOr<bool> GiveAway(const CommandContext& context, const JobPlan& plan, const RunOptions& options,
                              ChosenController& controller) {
  const std::string& id = plan.record.id();
  std::fprintf(stderr, "every task runs; %s gets what the job needs\n", controller.host.name().c_str());
  const GivingUp giving_up{.is_wanted = [&] { return Interrupts() > 0 || context.jobs().IsToStop(id); },
                           .wake_fd = options.interrupt_fd};
  const absl::Status given = HandOverJob(context, id, plan.contents, controller, giving_up);
  if (given.ok()) return true;
  if (!giving_up.is_wanted()) return given;
  if (!absl::IsCancelled(given)) std::fprintf(stderr, "%s\n", std::string(given.message()).c_str());
  return false;
}

// Brings about what the file says, from beginning to end, or until a job in the background runs.
absl::StatusOr<int> RunFile(const CommandContext& context,
                            const std::function<absl::StatusOr<Job>()>& read_file, bool detach) {
  const TimePoint start = Now();
  const std::string& on = context.flags().controller;
  if (!on.empty() && !detach) {
    return InvalidArgument("--on %s: a host drives jobs in the background only: `run -d --on %s`", on, on);
  }
  std::unique_ptr<Detachment> detachment;
  if (detach && on.empty()) {
    int exit_code = 0;
    MUSTER_ASSIGN_OR_RETURN(detachment, Detachment::Fork(&exit_code));
    if (detachment == nullptr) return exit_code;
  }
  MUSTER_ASSIGN_OR_RETURN(const Job job, read_file());
  MUSTER_ASSIGN_OR_RETURN(Inventory inventory, context.ReadInventoryFlag());
  if (const std::string& servers = job.is_standing ? job.name : context.flags().cluster; !servers.empty()) {
    AskAboutServers(context, servers);
  }
  std::optional<ChosenController> controller;
  if (!on.empty()) {
    MUSTER_ASSIGN_OR_RETURN(controller, ChooseController(context, inventory, on));
  }
  MUSTER_RETURN_IF_ERROR(FindGpus(context, job, &inventory));
  JobPlan plan;
  const Planning planning = [&](const record::JobRecord* running) -> absl::StatusOr<JobPlan> {
    MUSTER_ASSIGN_OR_RETURN(const auto servers, FindServers(context, job.name));
    if (servers) MUSTER_RETURN_IF_ERROR(CheckDrivenTogether(context, *servers));
    MUSTER_ASSIGN_OR_RETURN(JobPlan plan,
                            PlanJob(context, job, inventory, running, servers ? &*servers : nullptr));
    if (controller) {
      const std::string id = running != nullptr ? running->id() : "";
      MUSTER_RETURN_IF_ERROR(CheckLogins(context, plan.record, id, *controller));
    }
    return plan;
  };
  if (job.is_standing) {
    MUSTER_ASSIGN_OR_RETURN(const auto exit_code,
                            SetHostsUpBesideTraining(context, job, inventory, planning));
    if (exit_code) return *exit_code;
  }
  BackgroundGuests guests;
  std::optional<JobLock> lock;  // as long as this process drives the job
  MUSTER_ASSIGN_OR_RETURN(lock, ClaimJob(context, job.name, planning, &plan));
  std::fprintf(stderr, "job %s: %d tasks on %d hosts\n", plan.record.id().c_str(), plan.record.tasks_size(),
               plan.record.hosts_size());
  if (!plan.data.empty()) std::fprintf(stderr, "data: %s\n", plan.data.c_str());

  const double timeout_s = context.flags().timeout_s;
  plan.record.set_deadline_micros(timeout_s > 0 ? WallTimeMicros() + static_cast<int64_t>(timeout_s * 1e6)
                                                : 0);
  plan.record.set_known_hosts(std::filesystem::absolute(context.known_hosts()).string());
  const double lost_timeout_s = context.flags().lost_timeout_s.value_or(job.is_standing ? kStandingLostS : 0);
  plan.record.set_lost_timeout_ms(static_cast<int64_t>(lost_timeout_s * 1000));
  RunOptions options = MakeRunOptions(context, plan.record);
  StopWhenInterrupted(&options);
  options.follow_logs = !detach;
  options.leave_running = controller.has_value();
  Replanner replanner(context, job, inventory);
  if (!job.is_standing) options.replan = std::bind_front(&Replanner::Replan, &replanner);
  // JSON alone on stdout, so that it can be read.
  const bool is_text = context.flags().format == OutputFormat::kText;
  RunDisplay display({.logs = !context.flags().quiet,
                      .log_fd = is_text ? STDOUT_FILENO : STDERR_FILENO,
                      .accuracy = is_text,
                      .train_steps = static_cast<uint64_t>(job.train.steps.value_or(0)),
                      .start = start,
                      .first_start = plan.record.cluster().generation() == 0},
                     plan.record);
  const int exit_code = job.is_standing ? SetHostsUp(context, inventory, plan, options, display) : 0;
  if (detachment != nullptr) {
    MUSTER_RETURN_IF_ERROR(detachment->OpenLog(context.jobs().JobFolder(plan.record.id()) / kControllerLog));
    GoOnInBackground(plan.record, *lock, *detachment, display, guests, &options, exit_code);
  }
  // In the background nobody reads it.
  const auto run = detach ? RunJob(context.jobs(), plan.record, plan.contents, options, display)
                          : RunShown(context.jobs(), plan.record, plan.contents, options, display);
  MUSTER_RETURN_IF_ERROR(run.status());
  if (run->is_left && !controller) {
    SayLeft(plan.record);
    return 0;
  }
  if (run->is_left) {
    MUSTER_ASSIGN_OR_RETURN(const bool is_given, GiveAway(context, plan, options, *controller));
    if (!is_given || Interrupts() > 0) {
      lock.reset();  // that host may have it by now
      MUSTER_RETURN_IF_ERROR(StopJob(context, plan.record.id()));
      return ExitCodeFor(absl::CancelledError(""));
    }
  }
  const RunResult& result = *run;
  if (result.is_left) {
    std::fprintf(
        stderr,
        job.is_standing
            ? "the servers of %1$s stand, and %2$s drives them; `muster run -d --on %2$s --cluster %1$s JOB` "
              "trains a job on them, `muster stop %1$s` ends them\n"
            : "job %1$s runs, and %2$s drives it; `muster logs -f %1$s` follows it, `muster wait %1$s` "
              "waits for its end\n",
        plan.record.id().c_str(), on.c_str());
    return exit_code;
  }
  display.Summarize(result);
  PrintResult(context, plan.record.id(), result);
  MUSTER_RETURN_IF_ERROR(result.fetched);
  return result.outcome.exit_code;
}

}  // namespace

absl::StatusOr<int> RunJobCommand(const CommandContext& context) {
  return RunFile(
      context, [&] { return context.ReadJobFlag(); }, context.flags().detach);
}

absl::StatusOr<int> UpCommand(const CommandContext& context) {
  return RunFile(
      context, [&] { return ReadStandingServers(context.flags().job); }, /*detach=*/true);
}

}  // namespace muster
