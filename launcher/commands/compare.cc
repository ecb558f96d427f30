// compare: runs of jobs side by side, by their result records.
#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "base/stdout.h"
#include "launcher/commands/controlling.h"
#include "launcher/comparison.h"

namespace muster {
namespace {

constexpr uint64_t kMostRecordBytes = 1 << 20;

// Else it is a job, of which the same name may be a folder.
bool IsFile(const std::string& argument) {
  std::error_code ignored;
  const auto status = std::filesystem::status(argument, ignored);
  return argument.find('/') != std::string::npos ||
         (std::filesystem::exists(status) && !std::filesystem::is_directory(status));
}

absl::StatusOr<Run> ReadRun(const std::string& name, const std::filesystem::path& path) {
  MUSTER_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMostRecordBytes));
  auto result = ParseResultRecord(text);
  if (!result.ok()) return Annotate(result.status(), path.string());
  return Run{.name = name, .result = *std::move(result)};
}

absl::Status CheckSucceeded(const record::JobRecord& job) {
  if (job.ended_micros() == 0) {
    return FailedPrecondition("job %s has not ended (%s): `muster wait %s`, then compare it", job.id(),
                              RecordedState(job), job.id());
  }
  const record::Outcome& ending = job.cluster().ending();
  if (static_cast<reconcile::Result>(ending.result()) == reconcile::Result::kSucceeded)
    return absl::OkStatus();
  return FailedPrecondition("job %s has no result, since it has not succeeded: %s (muster events %s)",
                            job.id(), ending.message(), job.id());
}

absl::StatusOr<Run> RunOf(const CommandContext& context, const std::string& id) {
  MUSTER_ASSIGN_OR_RETURN(const record::JobRecord job, FindJob(context, id));
  MUSTER_RETURN_IF_ERROR(CheckSucceeded(job));
  if (std::ranges::none_of(job.tasks(), &record::Task::writes_results)) {
    return FailedPrecondition(
        "job %s has no result record: its program is another one than muster's trainer, which writes it",
        job.id());
  }
  auto run = ReadRun(job.id(), context.jobs().JobFolder(job.id()) / kResultFile);
  if (absl::IsNotFound(run.status()))
    return FailedPrecondition("job %s: its result record is not there any more: %s", job.id(),
                              std::string(run.status().message()));
  return run;
}

}  // namespace

absl::Status CompareCommand(const CommandContext& context) {
  const std::vector<std::string>& arguments = context.flags().jobs;
  std::vector<Run> runs(arguments.size());
  std::vector<std::string> ids(arguments.size());  // of those that are jobs
  // A host that drives a job may have to be asked: not before all is known to be right.
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (IsFile(arguments[i])) {
      auto run = ReadRun(arguments[i], arguments[i]);
      if (!run.ok()) return InvalidArgument("%s", std::string(run.status().message()));
      runs[i] = *std::move(run);
    } else {
      MUSTER_ASSIGN_OR_RETURN(const record::JobRecord job, context.jobs().Find(arguments[i]));
      ids[i] = job.id();
    }
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i].empty()) continue;
    MUSTER_ASSIGN_OR_RETURN(runs[i], RunOf(context, ids[i]));
  }
  const Comparison comparison = Compare(std::move(runs));
  PrintToStdout(context.flags().format == OutputFormat::kJson ? ToJson(comparison) : ToText(comparison));
  return absl::OkStatus();
}

}  // namespace muster
