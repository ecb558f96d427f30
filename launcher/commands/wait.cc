// wait: until a job has ended, whoever drives it; if that is nobody, this process does.
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <optional>
#include <utility>

#include "launcher/commands/controlling.h"
#include "launcher/commands/driving.h"
#include "launcher/commands/reconnecting.h"
#include "launcher/commands/replanning.h"
#include "launcher/job_reporter.h"

namespace muster {
namespace {

// Has a job that nobody drives driven again by the host that is to, unless another muster is about to have it
// driven otherwise. NotFound: the host has it no more.
absl::Status ResumeThere(const CommandContext& context, const ChosenController& controller,
                         const std::string& id) {
  const auto lock = InTurn(context.jobs(), id, &JobStore::Lock);
  if (absl::IsFailedPrecondition(lock.status())) return absl::OkStatus();
  MUSTER_RETURN_IF_ERROR(lock.status());
  MUSTER_ASSIGN_OR_RETURN(const record::JobRecord record, context.jobs().Load(id));
  if (!IsDrivenElsewhere(record) || record.controller().name() != controller.host.name()) {
    return absl::OkStatus();
  }
  return controller.connection->Resume(record);
}

absl::Status NotEnded(const record::JobRecord& record) {
  return DeadlineExceeded("job %s has not ended", record.id());
}

// Of a job that a host drives, until it has ended, or that host has it no more (false), or the connection is
// lost.
absl::StatusOr<bool> AwaitEndThere(const CommandContext& context, const record::JobRecord& record,
                                   std::optional<TimePoint> deadline, Reconnecting& reconnecting) {
  MUSTER_ASSIGN_OR_RETURN(const ChosenController controller, ControllerOf(context, record, deadline));
  reconnecting.Reached();
  while (true) {
    const auto state = controller.connection->AwaitEnd(record.id(), deadline);
    if (absl::IsNotFound(state.status())) return false;  // another muster has taken it back
    MUSTER_RETURN_IF_ERROR(state.status());
    reconnecting.Heard();
    if (*state == Controller::State::kEnded) return true;
    if (*state == Controller::State::kUndriven) {
      const absl::Status resumed = ResumeThere(context, controller, record.id());
      if (absl::IsNotFound(resumed)) return false;
      MUSTER_RETURN_IF_ERROR(resumed);
    }
    if (deadline && Now() > *deadline) return NotEnded(record);
  }
}

// Until it has ended, and its record here says how, or that host has it no more.
absl::Status WaitThere(const CommandContext& context, std::optional<TimePoint> deadline,
                       record::JobRecord* record) {
  std::fprintf(stderr, "job %s is driven by %s\n", record->id().c_str(), record->controller().name().c_str());
  Reconnecting reconnecting;
  auto has_ended = AwaitEndThere(context, *record, deadline, reconnecting);
  while (!has_ended.ok()) {
    if (deadline && Now() > *deadline) return NotEnded(*record);
    if (!reconnecting.TriesAgain(has_ended.status())) {
      return Annotate(has_ended.status(), absl::StrFormat("%s drives job %s, and has not said how it is",
                                                          record->controller().name(), record->id()));
    }
    has_ended = AwaitEndThere(context, *record, deadline, reconnecting);
  }
  MUSTER_ASSIGN_OR_RETURN(*record, FindJob(context, record->id()));
  if (!*has_ended || !IsDrivenElsewhere(*record)) return absl::OkStatus();
  return Unavailable("job %s has ended, and %s has not said how", record->id(), record->controller().name());
}

// Until the job has ended (nullopt), or it is this process's to drive. A host may drive it, or another
// muster, and one may give it to the other meanwhile.
absl::StatusOr<std::optional<JobLock>> AwaitEndOrTurn(const CommandContext& context,
                                                      std::optional<TimePoint> deadline,
                                                      record::JobRecord* record) {
  constexpr int kLookEveryMicros = 200'000;
  bool is_said = false;
  while (true) {
    if (IsDrivenElsewhere(*record)) MUSTER_RETURN_IF_ERROR(WaitThere(context, deadline, record));
    if (record->ended_micros() != 0) return std::nullopt;
    if (!IsDrivenElsewhere(*record)) {
      auto lock = InTurn(context.jobs(), record->id(), &JobStore::Lock);
      if (!lock.ok() && !absl::IsFailedPrecondition(lock.status())) return lock.status();
      // What it was before the lock was ours, it may be no longer.
      MUSTER_ASSIGN_OR_RETURN(*record, context.jobs().Load(record->id()));
      if (record->ended_micros() != 0) return std::nullopt;
      if (lock.ok() && !IsDrivenElsewhere(*record)) return *std::move(lock);
      // Another muster drives it, and will write down how it ends.
      const auto driver = context.jobs().DriverOf(record->id());
      if (driver && !std::exchange(is_said, true)) {
        std::fprintf(stderr, "job %s is driven by process %d\n", record->id().c_str(), driver->pid);
      }
    }
    if (deadline && Now() > *deadline) return NotEnded(*record);
    ::usleep(kLookEveryMicros);
    MUSTER_ASSIGN_OR_RETURN(*record, context.jobs().Load(record->id()));
  }
}

}  // namespace

absl::StatusOr<int> WaitCommand(const CommandContext& context) {
  const TimePoint start = Now();
  // A host that drives it is asked as its end is waited for, and no longer than that.
  MUSTER_ASSIGN_OR_RETURN(record::JobRecord record, context.jobs().Find(context.flags().job));
  const std::optional<Duration> timeout = FromSeconds(context.flags().timeout_s);
  MUSTER_ASSIGN_OR_RETURN(
      const std::optional<JobLock> lock,
      AwaitEndOrTurn(context, timeout ? std::optional(start + *timeout) : std::nullopt, &record));
  if (lock) {
    RunOptions options = MakeRunOptions(context, record);
    options.follow_logs = false;
    if (timeout) options.give_up_at = start + *timeout;
    std::optional<Replanner> replanner = Replanner::Of(context, record);
    if (replanner) options.replan = std::bind_front(&Replanner::Replan, &*replanner);
    RunDisplay display(
        {.logs = false, .accuracy = context.flags().format == OutputFormat::kText, .start = start}, record);
    MUSTER_ASSIGN_OR_RETURN(
        const RunResult result,
        RunShown(context.jobs(), record, ContentsHere(context, record), options, display));
    display.Summarize(result);
    PrintResult(context, record.id(), result);
    MUSTER_RETURN_IF_ERROR(result.fetched);
    return result.outcome.exit_code;
  }
  // As whoever drove it has said it.
  const std::filesystem::path folder = context.jobs().JobFolder(record.id());
  RunResult result{.outcome = FromProto(record.cluster()).ending.value_or(reconcile::Outcome())};
  if (result.outcome.first_cause) result.last_words = ReadLastWords(folder / kHistoryFile);
  auto json = ReadFile(folder / kResultFile);
  if (!json.ok() && !absl::IsNotFound(json.status())) return json.status();
  if (json.ok()) result.result_json = *std::move(json);  // a job that wrote no result has none
  RunDisplay({.accuracy = context.flags().format == OutputFormat::kText, .start = start}, record)
      .Summarize(result);
  PrintResult(context, record.id(), result);
  return result.outcome.exit_code;
}

}  // namespace muster
