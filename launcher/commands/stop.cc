// stop: ends a job, whoever drives it, and counts what is left of it.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>

#include "launcher/commands/controlling.h"
#include "launcher/commands/driving.h"
#include "launcher/commands/interrupts.h"
#include "launcher/fleet.h"
#include "launcher/host_records.h"
#include "launcher/job_history.h"

namespace muster {
namespace {

// Whatever generation it has come to there, which `generation`, the newest that is known, becomes.
absl::Status StopDirectly(const std::string& job, const std::string& host, AgentConnection& connection,
                          uint64_t& generation) {
  constexpr int kMostGenerations = 5;  // that come while it is stopped
  agent::Request request;
  request.mutable_stop_tasks()->set_job(job);
  request.mutable_stop_tasks()->set_grace_ms(3000);
  for (int i = 0; i < kMostGenerations; ++i) {
    // Another muster may be about to start the next one.
    request.mutable_stop_tasks()->set_minimum_generation(generation + 2);
    MUSTER_ASSIGN_OR_RETURN(const agent::Response response,
                            connection.Call(request, Now() + std::chrono::seconds(30)));
    const agent::StopTasksResponse& stopped = response.stop_tasks();
    if (stopped.processes_left() > 0 || stopped.ports_left() > 0) {
      return Internal("%s: %d processes of the job are left, and %d of its ports are listened on", host,
                      stopped.processes_left(), stopped.ports_left());
    }
    const uint64_t fence = generation + 2;
    // The answer may be about the older ones only.
    agent::Request list;
    list.mutable_list_tasks()->set_job(job);
    MUSTER_ASSIGN_OR_RETURN(const agent::Response all,
                            connection.Call(list, Now() + std::chrono::seconds(10)));
    for (const agent::TaskStatus& task : all.list_tasks().tasks()) {
      generation = std::max(generation, task.generation());
    }
    if (generation < fence) return absl::OkStatus();  // nothing newer was spared
  }
  return Internal("%s: another muster starts the job's tasks again and again", host);
}

// By the names of the hosts where something may be left, which has been said.
using Left = std::map<std::string, absl::Status>;

// `newest` becomes the newest generation that one of the hosts has, if that is newer.
Left StopDirectly(const CommandContext& context, const record::JobRecord& record,
                  const std::vector<record::Host>& hosts, uint64_t* newest) {
  std::vector<uint64_t> generations(hosts.size(), record.cluster().generation());
  const auto statuses =
      AskHosts(hosts, context.connect_options(record), context.connect_timeout(),
               [&](size_t i, AgentConnection& connection) {
                 return StopDirectly(record.id(), hosts[i].name(), connection, generations[i]);
               });
  Left left;
  for (size_t i = 0; i < hosts.size(); ++i) {
    *newest = std::max(*newest, generations[i]);
    if (statuses[i].ok()) continue;
    std::fprintf(stderr, "%s\n", std::string(statuses[i].message()).c_str());
    left[hosts[i].name()] = statuses[i];
  }
  return left;
}

// Asks all hosts themselves, for when another muster holds the job and does not end: that one sees its tasks
// stopped, or its starts refused. Spare ones too, which it may have come to.
Left StopEverywhere(const CommandContext& context, const record::JobRecord& record) {
  uint64_t newest = 0;
  return StopDirectly(context, record, AllHosts(record), &newest);
}

// Makes sure of a job that has ended. Hosts that had nothing of it are not asked, unless another muster has
// gone on with it since: they may be down, and nobody's concern.
Left StopEnded(const CommandContext& context, const record::JobRecord& record,
               const std::vector<record::Host>& hosts) {
  uint64_t newest = record.cluster().generation();
  Left left = StopDirectly(context, record, hosts, &newest);
  if (newest > record.cluster().generation()) {
    std::vector<record::Host> others = AllHosts(record);
    std::erase_if(others, [&](const record::Host& other) {
      return std::ranges::find(hosts, other.name(), &record::Host::name) != hosts.end();
    });
    left.merge(StopDirectly(context, record, others, &newest));
  }
  return left;
}

absl::Status StatusOf(const Left& left, const std::string& job) {
  if (left.empty()) return absl::OkStatus();
  return absl::Status(
      left.begin()->second.code(),
      absl::StrFormat("job %s may not be stopped everywhere; `muster stop %s` again goes on", job, job));
}

// A job whose driving host is not reached ends without it. Once that is back, what drives it there sees its
// tasks stopped, and ends.
absl::Status StopWithoutDriver(const CommandContext& context, const std::string& id) {
  MUSTER_ASSIGN_OR_RETURN(const JobLock lock, InTurn(context.jobs(), id, &JobStore::Lock));
  MUSTER_ASSIGN_OR_RETURN(record::JobRecord record, context.jobs().Load(id));
  const Left left = StopEverywhere(context, record);
  if (!IsDrivenElsewhere(record)) return StatusOf(left, id);
  const std::string driver = record.controller().name();
  reconcile::Record cluster = FromProto(record.cluster());
  cluster.ending =
      reconcile::Outcome{.result = reconcile::Result::kStopped,
                         .exit_code = ExitCodeFor(absl::CancelledError("")),
                         .message = "stopped on request, without " + driver + ", which drove it"};
  for (const auto& [host, status] : left) cluster.ending->left_behind.push_back(host);
  *record.mutable_cluster() = ToProto(cluster);
  record.set_ended_micros(WallTimeMicros());
  record.clear_controller();
  // Which it may have reached since.
  for (record::Host& host : *record.mutable_hosts()) host.set_unreached(false);
  MUSTER_RETURN_IF_ERROR(context.jobs().Save(record));
  AddToHistory(context.jobs().JobFolder(id) / kHistoryFile, "the job has ended: " + cluster.ending->message);
  return Unavailable("job %s has been stopped on %d of %d hosts, and %s, which drove it, was not reached", id,
                     AllHosts(record).size() - left.size(), AllHosts(record).size(), driver);
}

absl::Status NotWrittenDown(const absl::Status& why, const std::string& job) {
  return Annotate(
      why, absl::StrFormat("how job %s ended is not written down, which `muster stop %s` does", job, job));
}

void SayNothingIsLeft(const std::string& job, size_t hosts) {
  std::fprintf(stderr, "job %s: 0 processes, 0 ports on %zu hosts\n", job.c_str(), hosts);
}

// Where it cannot come to be this process's to drive, for this reason.
absl::Status StopUndriven(const CommandContext& context, const record::JobRecord& record,
                          const absl::Status& why) {
  std::fprintf(stderr, "%s\n", std::string(why.message()).c_str());
  MUSTER_RETURN_IF_ERROR(StatusOf(StopEverywhere(context, record), record.id()));
  // Who drives it sees its tasks stopped, or its starts refused, and ends.
  if (absl::IsFailedPrecondition(why)) return absl::OkStatus();
  SayNothingIsLeft(record.id(), AllHosts(record).size());
  return record.ended_micros() != 0 ? absl::OkStatus() : NotWrittenDown(why, record.id());
}

// Who drives it, but not in the background, would go on with it: the job may not run yet. It is told to stop
// it, and waited for, unless that takes too long.
void StopByDriver(const JobStore& jobs, const std::string& id) {
  constexpr Duration kTimeout = std::chrono::minutes(1);
  const std::optional<JobDriver> driver = jobs.DriverOf(id);
  if (!driver || driver->in_background || !jobs.AskToStop(id).ok()) return;
  std::fprintf(stderr, "job %s is driven by process %d, which is told to stop it\n", id.c_str(), driver->pid);
  const TimePoint deadline = Now() + kTimeout;
  while (jobs.DriverOf(id) == driver && Now() < deadline) {
    if (!jobs.IsToStop(id)) (void)jobs.AskToStop(id);  // it drives the job once more
    ::usleep(10'000);
  }
}

}  // namespace

absl::Status StopCommand(const CommandContext& context) { return StopJob(context, context.flags().job); }

absl::Status StopJob(const CommandContext& context, const std::string& id_or_name) {
  MUSTER_ASSIGN_OR_RETURN(record::JobRecord record, context.jobs().Find(id_or_name));
  if (record.standing()) {
    AskAboutServers(context, record.id());
    MUSTER_ASSIGN_OR_RETURN(record, context.jobs().Load(record.id()));
    // Once it has been taken back, nobody drives it.
    MUSTER_RETURN_IF_ERROR(CheckTrainsNothing(context.jobs(), record));
  }
  StopByDriver(context.jobs(), record.id());
  MUSTER_ASSIGN_OR_RETURN(record, context.jobs().Load(record.id()));
  // Before whoever drives it is sent away: who interrupts a question wants nothing to be done.
  context.UnlockKeysOf(record);
  const std::string driver = ControllerName(record);
  std::optional<JobLock> deciding;  // until this process drives it
  if (auto taken = TakeBack(context, &record); taken.ok()) {
    deciding = *std::move(taken);
  } else {
    if (absl::IsUnavailable(taken.status()) && IsDrivenElsewhere(record)) {
      const auto controller = ControllerOf(context, record);
      // What it has done is not given up for a connection that broke.
      if (controller.ok()) return taken.status();
      std::fprintf(stderr, "%s\n", std::string(controller.status().message()).c_str());
      return StopWithoutDriver(context, record.id());
    }
    return StopUndriven(context, record, taken.status());
  }
  if (const absl::Status trains = CheckTrainsNothing(context.jobs(), record); !trains.ok()) {
    return driver.empty() ? trains : Undriven(trains, record.id());
  }
  auto lock = context.jobs().TakeOver(record.id());
  deciding.reset();
  if (!lock.ok()) {  // another muster has come to it since
    StopByDriver(context.jobs(), record.id());
    lock = context.jobs().TakeOver(record.id());
  }
  MUSTER_ASSIGN_OR_RETURN(record, context.jobs().Load(record.id()));
  const std::vector<record::Host> hosts = HostsThatHad(record);
  absl::Status written;  // how it ended
  if (!lock.ok()) {
    MUSTER_RETURN_IF_ERROR(StatusOf(StopEverywhere(context, record), record.id()));
    // Nothing runs, and what it starts is refused: but it may take long to see that.
    if (context.jobs().DriverOf(record.id())) return Annotate(lock.status(), "nothing of the job runs, but");
    MUSTER_ASSIGN_OR_RETURN(record, context.jobs().Load(record.id()));
    if (record.ended_micros() == 0) written = NotWrittenDown(lock.status(), record.id());
  } else if (record.ended_micros() != 0) {
    MUSTER_RETURN_IF_ERROR(StatusOf(StopEnded(context, record, hosts), record.id()));
  } else {
    RunOptions options = MakeRunOptions(context, record);
    StopWhenInterrupted(&options);
    options.stop = true;
    options.run_deadline.reset();
    options.follow_logs = false;
    RunDisplay display({.logs = false, .start = Now()}, record);
    MUSTER_ASSIGN_OR_RETURN(const RunResult result, RunShown(context.jobs(), record, {}, options, display));
    if (!result.outcome.left_behind.empty()) {
      display.Summarize(result);
      return Unavailable("not every host has said that its tasks have ended");
    }
    if (absl::IsCancelled(result.fetched)) return result.fetched;
    if (const auto ended = context.jobs().Load(record.id()); ended.ok() && ended->ended_micros() == 0) {
      written = NotWrittenDown(result.fetched, record.id());
    } else if (!result.fetched.ok()) {
      // That is what was asked for.
      std::fprintf(stderr, "%s\n", std::string(result.fetched.message()).c_str());
    }
  }
  MUSTER_ASSIGN_OR_RETURN(record, context.jobs().Load(record.id()));  // it may have been looked for since
  for (const record::Host& host : record.hosts()) {
    if (!host.unreached() || !lock.ok()) continue;
    std::fprintf(stderr, "%s was never reached, and has nothing of job %s\n", host.name().c_str(),
                 record.id().c_str());
  }
  SayNothingIsLeft(record.id(), hosts.size());
  return written;
}

}  // namespace muster
