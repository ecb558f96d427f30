#include "launcher/commands/driving.h"

#include <absl/strings/str_join.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "base/stdout.h"
#include "inventory/placement.h"
#include "launcher/commands/controlling.h"
#include "launcher/commands/interrupts.h"
#include "launcher/display_thread.h"
#include "launcher/fleet.h"
#include "launcher/gpus.h"
#include "launcher/host_records.h"
#include "launcher/job_contents.h"
#include "launcher/running_job.h"
#include "launcher/transport/known_hosts.h"

namespace muster {
RunOptions MakeRunOptions(const CommandContext& context, const record::JobRecord& record) {
  RunOptions options{.connect = context.connect_options(record), .home = context.home()};
  if (record.lost_timeout_ms() > 0)
    options.lost_deadline = std::chrono::milliseconds(record.lost_timeout_ms());
  if (context.flags().lost_timeout_s) options.lost_deadline = FromSeconds(*context.flags().lost_timeout_s);
  if (record.deadline_micros() > 0) {
    const int64_t left = std::max<int64_t>(0, record.deadline_micros() - WallTimeMicros());
    options.run_deadline = std::chrono::microseconds(left);
  }
  return options;
}

absl::StatusOr<RunResult> RunShown(const JobStore& store, const record::JobRecord& record,
                                   const Contents& contents, const RunOptions& options, RunDisplay& display) {
  DisplayThread shown(display);
  auto result = RunJob(store, record, contents, options, shown);
  EndWhenInterrupted();
  return result;
}

void GoOnInBackground(const record::JobRecord& record, const JobLock& lock, Detachment& detachment,
                      RunDisplay& display, BackgroundGuests& guests, RunOptions* options, int exit_code) {
  options->guests = &guests.keeper;
  std::string said = absl::StrFormat(
      record.standing()
          ? "the servers of %1$s stand; `muster run --cluster %1$s JOB` trains a job on them, "
            "`muster stop %1$s` ends them"
          : "job %1$s runs; `muster logs -f %1$s` follows it, `muster wait %1$s` waits for its end",
      record.id());
  const auto say_driver = [&lock](bool in_background) {
    const absl::Status said = lock.SetInBackground(in_background);
    if (!said.ok()) std::fprintf(stderr, "%s\n", std::string(said.message()).c_str());
  };
  options->on_everything_runs = [said = std::move(said), say_driver, &detachment, &display, options,
                                 exit_code] {
    display.GoToLog();
    std::fprintf(stderr, "%s\n", said.c_str());
    const auto detached = [&] {
      LeaveWhenTerminated(options);
      say_driver(true);
    };
    detachment.Detach(detached, exit_code);
  };
  // Who took over now would take it for a job to be run again, and what it has made would not be fetched.
  options->on_ending = [say_driver] { say_driver(false); };
}

BackgroundGuests::~BackgroundGuests() { EndWhenTerminated(); }

void PrintResult(const CommandContext& context, const std::string& job, const RunResult& result) {
  if (context.flags().format != OutputFormat::kJson || !result.fetched.ok()) return;
  if (!result.result_json.empty()) return PrintToStdout(result.result_json);
  const reconcile::Outcome& outcome = result.outcome;
  const bool has_succeeded = outcome.result == reconcile::Result::kSucceeded;
  const char* const otherwise = outcome.result == reconcile::Result::kStopped ? "Stopped" : "Failed";
  nlohmann::ordered_json json = {
      {"job", job}, {"state", has_succeeded ? "Succeeded" : otherwise}, {"exit_code", outcome.exit_code}};
  if (!has_succeeded) json["cause"] = outcome.message;
  PrintToStdout(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

void SayLeft(const record::JobRecord& record) {
  std::fprintf(stderr,
               "job %s goes on without this process, which only runs commands of others from now on\n",
               record.id().c_str());
}

absl::StatusOr<JobLock> InTurn(const JobStore& jobs, const std::string& job,
                               absl::StatusOr<JobLock> (JobStore::*lock)(const std::string& id) const) {
  MUSTER_ASSIGN_OR_RETURN(const JobLock deciding, jobs.LockDecision());
  return (jobs.*lock)(job);
}

absl::Status FindGpus(const CommandContext& context, const Job& job, Inventory* inventory) {
  if (!job.wants_gpus()) return absl::OkStatus();
  const std::map<std::string, absl::Status> unknown =
      AskHostsForGpus(context, job, context.connect_options(AllHosts(*inventory)), inventory);
  for (const auto& [host, why] : unknown) {
    if (absl::IsInvalidArgument(why)) return why;
  }
  for (const auto& [host, why] : unknown) std::fprintf(stderr, "%s\n", std::string(why.message()).c_str());
  return absl::OkStatus();
}

std::map<std::string, absl::Status> AskHostsForGpus(const CommandContext& context, const Job& job,
                                                    const ConnectOptions& connect, Inventory* inventory) {
  std::map<std::string, absl::Status> unknown;
  if (!job.wants_gpus()) return unknown;
  const std::vector<int> asked = SuitableHosts(job, *inventory);
  const std::vector<record::Host> hosts = AllHosts(*inventory);
  std::vector<std::vector<Gpu>> found(asked.size());
  const std::vector<absl::Status> statuses =
      OnEachHost(asked.size(), context.flags().parallel, [&](size_t i) -> absl::Status {
        const TimePoint deadline = Now() + context.connect_timeout();
        MUSTER_ASSIGN_OR_RETURN(const auto transport, OpenTransport(hosts[asked[i]], connect, deadline));
        MUSTER_ASSIGN_OR_RETURN(found[i],
                                AskForGpus(*transport, Now() + kGpusTimeout, connect.ssh.cancel_fd));
        return absl::OkStatus();
      });
  for (size_t i = 0; i < asked.size(); ++i) {
    Host& host = inventory->hosts[asked[i]];
    if (!statuses[i].ok()) {
      unknown[host.name] =
          Unavailable("%s; nobody knows which GPUs it has", std::string(statuses[i].message()));
      continue;
    }
    std::vector<int> there;
    for (const Gpu& gpu : found[i]) there.push_back(gpu.index);
    if (!host.gpus) host.gpus = there;
    for (const int gpu : *host.gpus) {
      if (std::ranges::find(there, gpu) != there.end()) continue;
      unknown[host.name] =
          InvalidArgument("%s: %s is to use GPU %d, and has %s", host.position.ToString(), host.name, gpu,
                          there.empty() ? "none" : "only " + absl::StrJoin(there, ", "));
      host.gpus.reset();
      break;
    }
  }
  return unknown;
}

absl::StatusOr<JobPlan> PlanJob(const CommandContext& context, const Job& job, const Inventory& inventory,
                                const record::JobRecord* running, const record::JobRecord* servers,
                                bool keeps_contents) {
  if (running != nullptr && running->standing() != job.is_standing) {
    return FailedPrecondition(
        "%s: %s %s: take another name, or first `muster stop %s`", job.path, running->id(),
        running->standing() ? "are servers that stand, and this is a job" : "is a job, and these are servers",
        running->id());
  }
  if (const std::string why = WhyNotElastic(job, servers); !why.empty() && job.worker.max) {
    return InvalidArgument("%s: \"max\": nobody can join the job while it runs: %s", job.path, why);
  }
  const PlanInputs inputs{.installation = context.installation(),
                          .data_folder = context.data_folder(),
                          .data_cache = context.data_cache(),
                          .running = running,
                          .servers = servers,
                          .keeps_contents = keeps_contents};
  if (job.worker.max && running != nullptr) {
    Job grown = job;
    grown.worker.count = std::clamp(WorkersOf(*running), job.worker.count, *job.worker.max);
    // Else it begins anew with as many as the file says, which there may be room for.
    auto plan = MakePlan(grown, inventory, inputs);
    if (plan.ok() && GoesOn(*running, plan->record)) return plan;
  }
  return MakePlan(job, inventory, inputs);
}

Contents ContentsHere(const CommandContext& context, const record::JobRecord& record) {
  const auto job = JobOf(record);
  if (!job.ok()) return {};
  const auto packed = PackJob(*job, context.installation(), context.data_folder(), context.data_cache());
  if (!packed.ok()) return {};
  Contents contents;
  for (const Content& content : packed->contents) {
    const bool is_needed = std::ranges::any_of(
        record.contents(), [&](const record::Content& needed) { return needed.sha256() == content.sha256; });
    if (is_needed) contents[content.sha256] = content;
  }
  return contents;
}

std::optional<record::JobRecord> FindTrainedBy(const JobStore& jobs, const std::string& servers) {
  std::vector<absl::Status> problems;  // of records that nobody can read
  for (record::JobRecord& job : jobs.List(&problems)) {
    if (job.ended_micros() == 0 && job.servers().job() == servers) return std::move(job);
  }
  return std::nullopt;
}

std::vector<record::Host> HostsThatHad(const record::JobRecord& record) {
  std::vector<record::Host> hosts;
  const record::Outcome& ending = record.cluster().ending();
  const auto known = KnownHosts::Load(record.known_hosts());
  // Who drives a job until it fails writes down whom it has reached. A driver that was killed may not have
  // come to that, and who stops the job in its place does not know.
  const bool is_written_down =
      record.ended_micros() != 0 && ending.result() == static_cast<int>(reconcile::Result::kFailed);
  for (const record::Host& host : record.hosts()) {
    // Of a job that never began, one that nobody can have logged in to has nothing; the others may have its
    // programs.
    const bool can_be_logged_in_to = !known.ok() || !known->KeysOf(host.name()).empty();
    const bool was_reached = host.reached() || !host.machine_id().empty() || host.local() ||
                             std::ranges::count(ending.left_behind(), host.name()) > 0 ||
                             (!is_written_down && can_be_logged_in_to);
    if (record.cluster().generation() > 0 ? !host.unreached() : was_reached) hosts.push_back(host);
  }
  return hosts;
}

absl::Status CheckTrainsNothing(const JobStore& jobs, const record::JobRecord& record) {
  const auto trained = record.standing() ? FindTrainedBy(jobs, record.id()) : std::nullopt;
  if (!trained) return absl::OkStatus();
  return FailedPrecondition("%s trains job %s: first `muster wait %s`, or `muster stop %s`", record.id(),
                            trained->id(), trained->id(), trained->id());
}

// Also if the clock has gone back since the last one.
void GiveNumber(const JobStore& jobs, record::JobRecord* record) {
  if (!record->has_servers() || record->servers().number() != 0) return;
  auto number = static_cast<uint64_t>(WallTimeMicros());
  std::vector<absl::Status> problems;  // of records that nobody can read
  for (const record::JobRecord& job : jobs.List(&problems)) {
    if (job.servers().job() != record->servers().job()) continue;
    number = std::max(number, job.servers().number() + job.cluster().base_generation() + 1);
  }
  record->mutable_servers()->set_number(number);
}

void MakeNewest(const JobStore& jobs, record::JobRecord* record) {
  std::vector<absl::Status> problems;  // of records that nobody can read
  for (const record::JobRecord& job : jobs.List(&problems)) {
    if (job.name() != record->name()) continue;
    record->set_created_micros(std::max(record->created_micros(), job.created_micros() + 1));
  }
}

absl::Status CheckFree(const JobStore& jobs, const std::string& servers, const std::string& job_name) {
  MUSTER_ASSIGN_OR_RETURN(const record::JobRecord record, jobs.Load(servers));
  if (!AreThere(record)) {
    return FailedPrecondition("the servers of %s do not stand: `muster up %s` starts them", servers,
                              record.job_file());
  }
  const auto trained = FindTrainedBy(jobs, servers);
  if (!trained || trained->name() == job_name) return absl::OkStatus();
  return FailedPrecondition(
      "the servers of %s train job %s: `muster wait %s` waits for its end, `muster stop %s` brings it about",
      servers, trained->id(), trained->id(), trained->id());
}

absl::StatusOr<std::optional<record::JobRecord>> ServersOf(const JobStore& jobs,
                                                           const record::JobRecord& job) {
  if (!job.has_servers()) return std::nullopt;
  return jobs.Load(job.servers().job());
}

absl::StatusOr<std::optional<record::JobRecord>> FindServers(const CommandContext& context,
                                                             const std::string& job_name) {
  const std::string& name = context.flags().cluster;
  if (name.empty()) return std::nullopt;
  MUSTER_ASSIGN_OR_RETURN(record::JobRecord servers, context.jobs().Find(name));
  if (!servers.standing()) {
    return InvalidArgument("%s is a job, not servers that stand: `muster up FILE` starts those",
                           servers.id());
  }
  MUSTER_RETURN_IF_ERROR(CheckFree(context.jobs(), servers.id(), job_name));
  return servers;
}

absl::StatusOr<std::optional<record::JobRecord>> FindUnended(const JobStore& jobs,
                                                             const std::string& id_or_name) {
  auto newest = jobs.Find(id_or_name);
  if (absl::IsInvalidArgument(newest.status())) return std::nullopt;
  MUSTER_RETURN_IF_ERROR(newest.status());
  if (newest->ended_micros() != 0) return std::nullopt;
  return *std::move(newest);
}

absl::Status CheckFetched(const record::JobRecord& running) {
  const record::ClusterRecord& cluster = running.cluster();
  const bool is_to_fetch =
      running.ended_micros() == 0 && cluster.has_ending() &&
      cluster.ending().result() == static_cast<int>(reconcile::Result::kSucceeded) &&
      std::ranges::any_of(running.tasks(), [](const record::Task& task) { return task.writes_results(); });
  if (!is_to_fetch) return absl::OkStatus();
  return FailedPrecondition(
      "job %s has succeeded, and its results are still to be fetched: `muster wait %s` does that, `muster "
      "stop %s` gives them up",
      running.id(), running.id(), running.id());
}

absl::Status CheckOwnLogins(const CommandContext& context, const record::JobRecord& running,
                            const record::JobRecord& plan) {
  constexpr Duration kTimeout = std::chrono::seconds(5);  // a host that is down is not waited for any longer
  context.UnlockKeysOf(running);
  const ConnectOptions connect = context.connect_options(plan);
  const std::string unchanged = absl::StrFormat("job %s goes on as it is", running.id());
  const auto check_interrupts = [&] {
    return Interrupts() > 0 ? Cancelled("interrupted: %s", unchanged) : absl::OkStatus();
  };
  MUSTER_RETURN_IF_ERROR(check_interrupts());
  if (!IsDrivenElsewhere(running) && !context.jobs().DriverOf(running.id())) return absl::OkStatus();
  std::set<std::string> names;
  for (const record::Task& task : plan.tasks()) names.insert(task.host());
  std::vector<record::Host> hosts;
  std::ranges::copy_if(plan.hosts(), std::back_inserter(hosts),
                       [&](const record::Host& host) { return names.contains(host.name()); });
  const std::vector<absl::Status> statuses = OnEachHost(hosts.size(), hosts.size(), [&](size_t i) {
    return OpenTransport(hosts[i], connect, Now() + std::min(kTimeout, context.connect_timeout())).status();
  });
  MUSTER_RETURN_IF_ERROR(check_interrupts());
  for (const absl::Status& status : statuses) {
    // Where another machine answers, the host may have moved.
    if (NeedsUser(status) && !IsOtherMachine(status)) return Annotate(status, unchanged);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<TakenJob>> TakeOverJob(const JobStore& jobs, const record::JobRecord& before,
                                                    const Planning& planning, JobPlan* plan) {
  MUSTER_ASSIGN_OR_RETURN(JobLock lock, jobs.TakeOver(before.id()));
  // It may have gone on, or ended, before the lock was ours.
  MUSTER_ASSIGN_OR_RETURN(record::JobRecord running, jobs.Load(before.id()));
  if (running.ended_micros() != 0) return std::nullopt;
  const bool is_as_before =
      PlacesOf(running) == PlacesOf(before) && GoesOn(running, plan->record) == GoesOn(before, plan->record);
  absl::Status planned = CheckFetched(running);
  if (planned.ok() && !is_as_before) {
    absl::StatusOr<JobPlan> again = planning(&running);
    planned = again.status();
    if (again.ok()) *plan = *std::move(again);
  }
  if (planned.ok()) {
    ContinueJob(running, &plan->record);
    GiveNumber(jobs, &plan->record);
    planned = jobs.Save(plan->record);
  }
  return TakenJob{std::move(lock), std::move(running), std::move(planned)};
}

}  // namespace muster
