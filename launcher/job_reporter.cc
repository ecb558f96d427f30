#include "launcher/job_reporter.h"

#include <absl/strings/str_format.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"

namespace muster {
namespace {

constexpr char kFirstCause[] = "first cause: ", kLastWord[] = "| ";

std::vector<JobEvent> Read(const std::filesystem::path& history) {
  int damaged = 0;
  return ParseHistory(ReadFile(history).value_or(""), &damaged);
}

}  // namespace

JobReporter::JobReporter(const std::filesystem::path& history, RunObserver& observer)
    : observer_(observer), history_(Read(history)) {
  if (auto file = HistoryFile::Open(history); file.ok()) {
    file_ = *std::move(file);
  } else {
    observer_.OnNotice("the job's history is not written: " + std::string(file.status().message()));
  }
  Note({{.time_micros = WallTimeMicros(), .what = absl::StrFormat("driven by process %d", ::getpid())}});
}

void JobReporter::Note(const std::vector<JobEvent>& events) {
  if (!file_) return;
  const absl::Status written = file_->Append(events);
  if (written.ok()) return;
  file_.reset();
  observer_.OnNotice("the job's history is not written any more: " + std::string(written.message()));
}

void JobReporter::Notice(const std::string& text) {
  Note({{.time_micros = WallTimeMicros(), .what = text}});
  observer_.OnNotice(text);
}

void JobReporter::OnView(const reconcile::View& view) {
  const std::vector<HostMove> moves = moves_.OnView(view, Now());
  for (const HostMove& move : moves) {
    Note({{.time_micros = WallTimeMicros(), .host = move.host, .what = move.what}});
  }
  Note(history_.OnView(view, WallTimeMicros()));
  observer_.OnView(view);
  for (const HostMove& move : moves) observer_.OnNotice(move.host + " " + move.what);
}

void JobReporter::OnTraining(const TrainingPoint& point) {
  if (point.lost) {
    if (const auto event = history_.OnStepsLost(*point.lost, WallTimeMicros())) {
      Note({*event});
      observer_.OnNotice(event->what);
    }
  }
  observer_.OnTraining(point);
}

void JobReporter::NoteUnfetched(const absl::Status& status) {
  Note({{.time_micros = WallTimeMicros(), .what = std::string(status.message())}});
}

void JobReporter::NoteFailure(const reconcile::Outcome& outcome, const std::vector<std::string>& last_words) {
  std::vector<JobEvent> events;
  const auto add = [&, now = WallTimeMicros()](const reconcile::Casualty& casualty, const std::string& what) {
    events.push_back(
        {.time_micros = now, .host = casualty.host, .task = casualty.task, .what = what, .is_end = true});
  };
  const reconcile::Casualty& cause = *outcome.first_cause;
  add(cause, kFirstCause + cause.what);
  for (const std::string& line : last_words) add(cause, kLastWord + line);
  for (const reconcile::Casualty& casualty : outcome.consequences) {
    add(casualty, (IsConsequence(casualty) ? "as a consequence: " : "failed too: ") + casualty.what);
  }
  Note(events);
}

std::vector<std::string> ReadLastWords(const std::filesystem::path& history) {
  std::vector<std::string> last_words;
  for (const JobEvent& event : Read(history)) {
    if (event.what.starts_with(kFirstCause)) last_words.clear();
    if (event.what.starts_with(kLastWord)) last_words.push_back(event.what.substr(sizeof kLastWord - 1));
  }
  return last_words;
}

}  // namespace muster
