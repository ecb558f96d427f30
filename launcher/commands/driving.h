// What commands that drive a job share: its plan, the claim to it, and how the process goes on in the
// background.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>

#include "launcher/commands/context.h"
#include "launcher/commands/detachment.h"
#include "launcher/plan.h"
#include "launcher/run_display.h"
#include "launcher/runner.h"
#include "launcher/transport/guest_commands.h"

namespace muster {

/// With the deadlines that the job was run with.
RunOptions MakeRunOptions(const CommandContext& context, const record::JobRecord& record);

/// Commands of other processes that go through the connections of the job that this one drives. Made before
/// the job's lock: at its end it waits for those that have not ended, which SIGTERM ends then.
struct BackgroundGuests {
  GuestKeeper keeper;
  ~BackgroundGuests();
};

/// RunJob with a display that a thread of its own drives: who reads it may stop doing so, which is not to
/// stop the job. Returns once everything has been shown, until when interrupts end this process.
absl::StatusOr<RunResult> RunShown(const JobStore& store, const record::JobRecord& record,
                                   const Contents& contents, const RunOptions& options, RunDisplay& display);

/// Once every task runs, and until the job ends; the command ends with `exit_code` then. All of them must
/// outlive the run with these options.
void GoOnInBackground(const record::JobRecord& record, const JobLock& lock, Detachment& detachment,
                      RunDisplay& display, BackgroundGuests& guests, RunOptions* options, int exit_code = 0);

/// The result record on stdout, where JSON is asked for; of a job that has none, how it ended.
void PrintResult(const CommandContext& context, const std::string& job, const RunResult& result);

/// Says that this process drives the job no more (RunResult::is_left).
void SayLeft(const record::JobRecord& record);

/// As JobStore does it, but not while another muster decides who drives the job.
absl::StatusOr<JobLock> InTurn(const JobStore& jobs, const std::string& job,
                               absl::StatusOr<JobLock> (JobStore::*lock)(const std::string& id) const);

/// Plans against the job that runs, or against none. A claim may call it again, since a job goes on until
/// whoever drives it has ended: tasks may have other places then.
using Planning = std::function<absl::StatusOr<JobPlan>(const record::JobRecord* running)>;

/// For a job that wants GPUs, asks the hosts that its tasks may run on which they have, where the inventory
/// does not say; where it does, whether they have them. InvalidArgument: one has not. One that cannot be
/// asked is named on stderr, and has what the inventory says.
absl::Status FindGpus(const CommandContext& context, const Job& job, Inventory* inventory);

/// Likewise, and returns those of which that is not known, by name, and why. InvalidArgument: it has not what
/// the inventory says, which it says no more then. Gives up when the cancel_fd of `connect` becomes readable.
std::map<std::string, absl::Status> AskHostsForGpus(const CommandContext& context, const Job& job,
                                                    const ConnectOptions& connect, Inventory* inventory);

/// A plan as MakePlan has it; FailedPrecondition: what runs under this name is of another kind. `servers`:
/// those that stand and train it; null: none. `keeps_contents`: PlanInputs. A job that has got workers by its
/// `max` keeps them as long as the others go on.
absl::StatusOr<JobPlan> PlanJob(const CommandContext& context, const Job& job, const Inventory& inventory,
                                const record::JobRecord* running, const record::JobRecord* servers = nullptr,
                                bool keeps_contents = false);

/// What hosts of the job may need: as much of it as there still is on this machine, as it was.
Contents ContentsHere(const CommandContext& context, const record::JobRecord& record);

/// The standing servers that the job of this name is to be trained by, as the flag says. Nothing: the flag
/// says none. FailedPrecondition: they are not there, or train another job.
absl::StatusOr<std::optional<record::JobRecord>> FindServers(const CommandContext& context,
                                                             const std::string& job_name);

/// Where something of a job may be, as its record says. Not on its spare hosts: one that was used is none any
/// more.
std::vector<record::Host> HostsThatHad(const record::JobRecord& record);

/// Those that train this job. Nothing: it has its own, or none.
absl::StatusOr<std::optional<record::JobRecord>> ServersOf(const JobStore& jobs,
                                                           const record::JobRecord& job);

/// Gives a job that standing servers train its number, if it has none.
void GiveNumber(const JobStore& jobs, record::JobRecord* record);

/// Makes the plan of a new job the newest one of its name, though the clock may have gone back.
void MakeNewest(const JobStore& jobs, record::JobRecord* record);

/// The job that standing servers train, or are about to.
std::optional<record::JobRecord> FindTrainedBy(const JobStore& jobs, const std::string& servers);

/// FailedPrecondition: they are standing servers, which train a job that would be without them.
absl::Status CheckTrainsNothing(const JobStore& jobs, const record::JobRecord& record);

/// FailedPrecondition: the standing servers of this id are not there, or train another job than that of this
/// name.
absl::Status CheckFree(const JobStore& jobs, const std::string& servers, const std::string& job_name);

/// Of this name or id, if it has not ended. Fails where nobody can tell: JobStore::Find.
absl::StatusOr<std::optional<record::JobRecord>> FindUnended(const JobStore& jobs,
                                                             const std::string& id_or_name);

/// FailedPrecondition: the job has succeeded, and what it has made is still to be brought here. It is not to
/// be made again before.
absl::Status CheckFetched(const record::JobRecord& running);

/// Before whoever drives the job `running` is sent away: whether this process can go on with it by this plan.
/// Who sits at the terminal is asked here for what logging in to the hosts of both may need: in the
/// background nobody can be. Then it logs in to those of the plan's tasks; one that does not answer may be
/// down, which is no failure. Where nobody drives the job there is nothing to lose by going on with it.
/// Cancelled: interrupted. Unavailable: a host refuses this process, for good.
absl::Status CheckOwnLogins(const CommandContext& context, const record::JobRecord& running,
                            const record::JobRecord& plan);

/// A job whose driver this process is now.
struct TakenJob {
  JobLock lock;
  record::JobRecord running;  // as the driver before has left it
  absl::Status planned;       // else it is to go on as it is: the plan is none for it, or CheckFetched fails
};

/// Makes this process the one that drives the job `before`, and continues it with the plan, which is one that
/// `planning` has made for `before`. Nothing: the job has ended meanwhile. The caller holds
/// JobStore::LockDecision.
absl::StatusOr<std::optional<TakenJob>> TakeOverJob(const JobStore& jobs, const record::JobRecord& before,
                                                    const Planning& planning, JobPlan* plan);

}  // namespace muster
