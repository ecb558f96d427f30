// Jobs that a host drives in place of this machine (`run --on HOST`): how one gets there, how this machine
// hears of it, and how it comes back.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/commands/context.h"
#include "launcher/controller.h"

namespace muster {

/// The host of the inventory that is to drive jobs, with muster on it. InvalidArgument: there is none of this
/// name, or one of the hosts is this machine itself.
struct ChosenController {
  record::Host host;
  std::unique_ptr<Controller> connection;
};
absl::StatusOr<ChosenController> ChooseController(const CommandContext& context, const Inventory& inventory,
                                                  const std::string& name);

/// FailedPrecondition: it cannot log in to each of the plan's hosts. Of a job that runs already, of this id
/// (else empty), one that is not reached is only named on stderr.
absl::Status CheckLogins(const CommandContext& context, const record::JobRecord& plan,
                         const std::string& running, ChosenController& controller);

/// That which drives the job now. It is not waited for beyond `deadline`.
absl::StatusOr<ChosenController> ControllerOf(const CommandContext& context, const record::JobRecord& record,
                                              std::optional<TimePoint> deadline = std::nullopt);

/// Gives it the job with what its hosts may need. This process holds the job's lock, and drives it no more.
/// If that fails, the job goes on, and the error says who drives it. Cancelled: it was given up before the
/// host had the job.
absl::Status HandOverJob(const CommandContext& context, const std::string& job, const Contents& contents,
                         ChosenController& controller, const GivingUp& giving_up = {});

/// Where a host drives the job, that is asked, and this machine's record and files become what it has; else
/// the record as it is. Unavailable: it is not reached. `kept` (null: none), empty at first, has the
/// connection for the next time.
absl::StatusOr<record::JobRecord> AskController(const CommandContext& context,
                                                const record::JobRecord& record,
                                                ChosenController* kept = nullptr);

/// The newest that is known of a job, as AskController has it; where that fails, a word on stderr, and the
/// record as it is.
absl::StatusOr<record::JobRecord> FindJob(const CommandContext& context, const std::string& id_or_name,
                                          ChosenController* kept = nullptr);

/// The same of standing servers, and of the job that they train, so that the records here have it.
void AskAboutServers(const CommandContext& context, const std::string& id_or_name);

/// The same of all jobs, as JobStore::List has them; their controllers are asked at once.
std::vector<record::JobRecord> FindJobs(const CommandContext& context, std::vector<absl::Status>* problems);

/// A host is to drive the job, as far as this machine knows.
inline bool IsDrivenElsewhere(const record::JobRecord& record) {
  return record.has_controller() && record.ended_micros() == 0;
}

/// The name of that host; empty: there is none.
inline std::string ControllerName(const record::JobRecord& record) {
  return IsDrivenElsewhere(record) ? record.controller().name() : "";
}

/// The failure with what follows from it: the job is left as it is, by whoever drove it before.
absl::Status Undriven(const absl::Status& failure, const std::string& job);

/// No host drives the job from now on, and the record is as it was left; as long as what this returns lives,
/// nobody else decides who does. Unavailable: one does that is not reached, or no more, and may go on with
/// it. FailedPrecondition: another muster is about to.
absl::StatusOr<JobLock> TakeBack(const CommandContext& context, record::JobRecord* record);

}  // namespace muster
