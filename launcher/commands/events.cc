// events: the history of a job.
#include <algorithm>
#include <cstdio>

#include "base/stdout.h"
#include "launcher/commands/controlling.h"
#include "launcher/commands/reconnecting.h"
#include "launcher/job_history.h"

namespace muster {
namespace {

constexpr Duration kLookEvery = std::chrono::milliseconds(200);
constexpr Duration kLookElsewhereEvery =
    std::chrono::seconds(1);  // which brings all that is there of the job

// "2026-01-31T12:00:00.250Z".
std::string FormatTime(int64_t micros) {
  std::string text = FormatWallTime(micros);
  text.pop_back();
  return text + absl::StrFormat(".%03dZ", micros / 1000 % 1000);
}

std::string SubjectOf(const JobEvent& event) {
  if (event.host.empty()) return "job";
  return event.task.empty() ? event.host : event.task + "@" + event.host;
}

void Print(const CommandContext& context, const JobEvent& event) {
  PrintToStdout(
      context.flags().format == OutputFormat::kJson
          ? FormatJobEvent(event) + "\n"
          : absl::StrFormat("%s  %-20s  %s\n", FormatTime(event.time_micros), SubjectOf(event), event.what));
}

}  // namespace

absl::Status EventsCommand(const CommandContext& context) {
  ChosenController controller;
  MUSTER_ASSIGN_OR_RETURN(record::JobRecord record, FindJob(context, context.flags().job, &controller));
  const std::filesystem::path path = context.jobs().JobFolder(record.id()) / kHistoryFile;
  Reconnecting reconnecting;
  if (controller.connection != nullptr) reconnecting.Heard();
  size_t printed = 0;
  while (true) {
    // Before what it wrote until then is read.
    const bool is_last = !context.flags().follow || record.ended_micros() != 0;
    const auto text = ReadFile(path);
    if (!text.ok() && !absl::IsNotFound(text.status())) return text.status();
    const size_t whole = text.ok() ? text->rfind('\n') + 1 : 0;
    int damaged = 0;
    std::vector<JobEvent> events = ParseHistory(text.ok() ? text->substr(0, whole) : "", &damaged);
    events.erase(events.begin(), events.begin() + std::min(printed, events.size()));
    printed += events.size();
    // What hosts tell arrives later than what this machine sees.
    std::stable_sort(events.begin(), events.end(),
                     [](const JobEvent& a, const JobEvent& b) { return a.time_micros < b.time_micros; });
    for (const JobEvent& event : events) Print(context, event);
    if (is_last) {
      if (damaged > 0) std::fprintf(stderr, "%d lines of %s are damaged\n", damaged, path.c_str());
      return absl::OkStatus();
    }
    if (ReaderIsGone(STDOUT_FILENO, IsDrivenElsewhere(record) ? kLookElsewhereEvery : kLookEvery))
      return absl::OkStatus();
    MUSTER_ASSIGN_OR_RETURN(record, context.jobs().Load(record.id()));
    auto newest = AskController(context, record, &controller);
    if (newest.ok()) {
      record = *std::move(newest);
      reconnecting.Heard();
    } else if (!reconnecting.TriesAgain(newest.status())) {
      return newest.status();
    }
  }
}

}  // namespace muster
