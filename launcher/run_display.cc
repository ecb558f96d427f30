#include "launcher/run_display.h"

#include <absl/strings/str_join.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/stdout.h"
#include "launcher/data_sets.h"
#include "launcher/job_history.h"

namespace muster {
namespace {

using Json = nlohmann::json;

std::string Bar(double part) {
  constexpr int kWidth = 20;
  const int filled = std::clamp(static_cast<int>(part * kWidth), 0, kWidth);
  return "[" + std::string(filled, '#') + std::string(kWidth - filled, '.') + "]";
}

bool WasStopped(const reconcile::TaskView& task) {
  return task.state == reconcile::TaskState::kFailed && task.report && task.report->stopped;
}

std::string Describe(const reconcile::TaskView& task) {
  if (WasStopped(task)) return "stopped";
  std::string text = reconcile::TaskStateName(task.state);
  if (task.report && task.report->restarts > 0)
    text += absl::StrFormat(", restarts %d", task.report->restarts);
  if (task.report && !task.report->reason.empty() && task.state != reconcile::TaskState::kRunning) {
    text += ": " + task.report->reason;
  }
  return text;
}

std::string Describe(const reconcile::HostView& host) {
  const std::string state = reconcile::HostStateName(host.state);
  if (host.last_error.ok() || host.state == reconcile::HostState::kReady) return host.host + ": " + state;
  return state + ": " + std::string(host.last_error.message());  // which names the host
}

void SayLeftBehind(const reconcile::Outcome& outcome, const reconcile::View& view) {
  for (const std::string& host : outcome.left_behind) {
    const auto known = std::ranges::find(view.hosts, host, &reconcile::HostView::host);
    const bool why = known != view.hosts.end() && !known->last_error.ok();
    std::fprintf(stderr, "tasks may still run on %s%s\n", host.c_str(),
                 why ? (": " + std::string(known->last_error.message())).c_str()
                     : ", which has not said that they have ended");
  }
}

void SayCasualties(const reconcile::Outcome& outcome, const char* title, bool consequences) {
  bool is_titled = false;
  for (const reconcile::Casualty& casualty : outcome.consequences) {
    if (IsConsequence(casualty) != consequences) continue;
    if (!std::exchange(is_titled, true)) std::fprintf(stderr, "%s:\n", title);
    std::fprintf(stderr, "  %s on %s: %s\n", casualty.task.c_str(), casualty.host.c_str(),
                 casualty.what.c_str());
  }
}

double Number(const Json& json, const char* key) {
  const auto value = json.find(key);
  return value != json.end() && value->is_number() ? value->get<double>() : 0;
}

}  // namespace

RunDisplay::RunDisplay(const RunDisplayOptions& options, const record::JobRecord& record)
    : options_(options),
      job_(record.id()),
      created_micros_(record.created_micros()),
      ended_micros_(record.ended_micros()),
      printer_(/*prefix=*/true, options.log_fd) {
  for (const record::Task& task : record.tasks()) host_of_task_[task.id()] = task.host();
}

void RunDisplay::Say(const std::string& line) {
  block_.Clear();
  const std::string time = with_times_ ? FormatWallTime(WallTimeMicros()) + " " : "";
  std::fprintf(stderr, "%s%s\n", time.c_str(), line.c_str());
}

void RunDisplay::GoToLog() {
  block_.Disable();
  with_times_ = true;
}

void RunDisplay::OnView(const reconcile::View& view) {
  if (view_.phase == reconcile::Phase::kRunning && view.phase == reconcile::Phase::kGathering) {
    Say(absl::StrFormat("generation %d is given up (a port was taken): all tasks start again",
                        view.generation));
  }
  // A stop can take seconds: why it happens is said first.
  if (view.phase == reconcile::Phase::kEnding && view_.phase != view.phase &&
      view.ending->result != reconcile::Result::kSucceeded) {
    Say("stopping the job: " + view.ending->message);
  }
  view_ = view;
  ReportChanges(view);
  Draw(/*must=*/false);
}

// One line a change. On a terminal the hosts' way to being ready is drawn instead, and only trouble is said.
void RunDisplay::ReportChanges(const reconcile::View& view) {
  for (const reconcile::HostView& host : view.hosts) {
    const bool given_up = host.state == reconcile::HostState::kGivenUp;
    const std::string text = given_up ? reconcile::GivenUpText(view, host.host) : Describe(host);
    std::string& said = said_[host.host];
    if (said == text) continue;
    const bool trouble =
        given_up || host.state == reconcile::HostState::kLost || host.state == reconcile::HostState::kRefused;
    const bool is_late = host.state == reconcile::HostState::kConnecting && !host.last_error.ok() &&
                         view.phase == reconcile::Phase::kGathering;
    if (is_late && late_hosts_.insert(host.host).second) {
      Say(absl::StrFormat("%s; it is tried for %.0f s in all", std::string(host.last_error.message()),
                          ToSeconds(reconcile::Options().connect_deadline)));
    }
    if (trouble || (!block_.enabled() && host.state == reconcile::HostState::kReady)) Say(text);
    said = text;
  }
  for (const reconcile::TaskView& task : view.tasks) {
    std::string& host = host_of_task_[task.task];
    if (!host.empty() && host != task.host)
      Say(absl::StrFormat("%s goes from %s to %s", task.task, host, task.host));
    host = task.host;
    const std::string text = Describe(task);
    std::string& said = said_[task.task];
    if (said == text) continue;
    const bool trouble = task.state != reconcile::TaskState::kPending &&
                         task.state != reconcile::TaskState::kRunning &&
                         task.state != reconcile::TaskState::kSucceeded && !WasStopped(task);
    if (trouble || (!block_.enabled() && task.state != reconcile::TaskState::kPending)) {
      Say(absl::StrFormat("%s on %s: %s", task.task, task.host, text));
    }
    said = text;
  }
}

void RunDisplay::OnNotice(const std::string& text) { Say(text); }

void RunDisplay::OnHostFacts(const HostFacts& facts) {
  if (block_.enabled()) return;
  Say(absl::StrFormat("%s: connected, %s, %s, %d processors, %s of memory", facts.host,
                      facts.facts.architecture(), facts.facts.libc(), facts.facts.processors(),
                      FormatBytes(facts.facts.memory_bytes())));
}

void RunDisplay::OnUpload(const UploadStep& step) {
  Upload& upload = uploads_[step.host][step.content];
  if (!step.problem.empty()) {
    upload = {};
    return Say(step.problem + "; it will get it in another way");
  }
  if (upload.total == 0 && !block_.enabled()) {
    Say(absl::StrFormat("%s: %s %s, %s%s", step.host, step.source.empty() ? "uploading" : "fetching",
                        step.content, FormatBytes(step.total_bytes),
                        step.source.empty() ? "" : ", from " + step.source));
  }
  upload = {.sent = step.sent_bytes, .total = step.total_bytes, .is_passed_on = !step.source.empty()};
  Draw(/*must=*/false);
}

void RunDisplay::OnLog(const std::string& task, const std::string& bytes, bool last) {
  if (!options_.logs) return;
  block_.Clear();
  printer_.Print(task, host_of_task_[task], bytes);
  if (last) printer_.Flush(task, host_of_task_[task]);
}

void RunDisplay::OnTraining(const TrainingPoint& point) {
  if (options_.first_start && !seconds_to_first_step_) {
    seconds_to_first_step_ = ToSeconds(Now() - options_.start) - point.seconds;
  }
  live_metrics_ =
      absl::StrFormat("step %d%s  loss %.4f  %.0f samples/s", point.step,
                      options_.train_steps > 0 ? absl::StrFormat("/%d", options_.train_steps) : "",
                      point.loss, point.samples_per_second);
  Draw(/*must=*/false);
}

void RunDisplay::Draw(bool must) {
  if (!block_.enabled()) return;
  std::vector<std::string> lines;
  if (view_.phase == reconcile::Phase::kGathering) {
    constexpr size_t kMostLines = 16;
    for (const reconcile::HostView& host : view_.hosts) {
      if (lines.size() < kMostLines) lines.push_back(HostLine(host));
    }
    if (view_.hosts.size() > kMostLines) {
      lines.push_back(absl::StrFormat("and %d more hosts", view_.hosts.size() - kMostLines));
    }
  } else {
    lines.push_back(LiveLine());
  }
  block_.Show(lines, must);
}

std::string RunDisplay::HostLine(const reconcile::HostView& host) const {
  std::string line = absl::StrFormat("%-20s %-10s", host.host, reconcile::HostStateName(host.state));
  if (const auto uploads = uploads_.find(host.host); uploads != uploads_.end()) {
    for (const auto& [content, upload] : uploads->second) {
      if (upload.total == 0) continue;
      line += absl::StrFormat("  %s %s %s", content, Bar(static_cast<double>(upload.sent) / upload.total),
                              FormatBytes(upload.total));
    }
  }
  return line;
}

std::string RunDisplay::LiveLine() const {
  std::map<reconcile::TaskState, int> counts;
  for (const reconcile::TaskView& task : view_.tasks) ++counts[task.state];
  std::vector<std::string> states;
  for (const auto& [state, count] : counts) {
    states.push_back(absl::StrFormat("%d %s", count, reconcile::TaskStateName(state)));
  }
  return absl::StrFormat("%s  %s  %s", FormatAge(Now() - options_.start), absl::StrJoin(states, ", "),
                         live_metrics_);
}

uint64_t RunDisplay::TransferredBytes(bool passed_on) const {
  uint64_t bytes = 0;
  for (const auto& [host, contents] : uploads_) {
    for (const auto& [content, upload] : contents) {
      if (upload.is_passed_on == passed_on) bytes += upload.sent;
    }
  }
  return bytes;
}

bool RunDisplay::HasRun(const std::string& task) const {
  return std::any_of(view_.tasks.begin(), view_.tasks.end(), [&](const reconcile::TaskView& each) {
    return each.task == task && each.report && each.report->incarnation > 0;
  });
}

// It may have begun long before this command.
double RunDisplay::JobSeconds() const {
  if (created_micros_ == 0) return ToSeconds(Now() - options_.start);
  const int64_t end = ended_micros_ != 0 ? ended_micros_ : WallTimeMicros();
  return static_cast<double>(std::max<int64_t>(end - created_micros_, 0)) / 1e6;
}

void RunDisplay::Summarize(const RunResult& result) {
  block_.Clear();
  const reconcile::Outcome& outcome = result.outcome;
  if (outcome.result != reconcile::Result::kSucceeded) {
    std::fprintf(stderr, "\n%s\n", outcome.message.c_str());
    if (outcome.first_cause && !options_.logs && HasRun(outcome.first_cause->task)) {
      std::fprintf(stderr, "muster logs %s %s   shows what it printed\n", job_.c_str(),
                   outcome.first_cause->task.c_str());
    }
    if (!result.last_words.empty()) std::fprintf(stderr, "its last words:\n");
    for (const std::string& line : result.last_words) std::fprintf(stderr, "  | %s\n", line.c_str());
    SayCasualties(outcome, "failed too", /*consequences=*/false);
    SayCasualties(outcome, "as a consequence", /*consequences=*/true);
    SayLeftBehind(outcome, view_);
    return;
  }
  std::string line = absl::StrFormat("succeeded after %.1f s", JobSeconds());
  if (ended_micros_ == 0) line += "; uploaded " + FormatBytes(TransferredBytes(/*passed_on=*/false));
  if (const uint64_t bytes = TransferredBytes(/*passed_on=*/true); bytes > 0) {
    line += "; hosts got " + FormatBytes(bytes) + " from each other";
  }
  std::fprintf(stderr, "\n%s\n", line.c_str());
  SayLeftBehind(outcome, view_);
  const Json json = Json::parse(result.result_json, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return;
  std::string training = absl::StrFormat("%.0f steps", Number(json, "steps"));
  // A chief that was started again at the very end has nothing to say of that.
  if (json.contains("seconds_training") && json["seconds_training"].is_number()) {
    training = absl::StrFormat("training %.2f s, %s, %.0f samples/s", Number(json, "seconds_training"),
                               training, Number(json, "samples_per_second"));
  }
  if (seconds_to_first_step_) {
    training = absl::StrFormat("time to first step %.2f s, ", *seconds_to_first_step_) + training;
  }
  std::fprintf(stderr, "%s, the chief sent %s and received %s\n", training.c_str(),
               FormatBytes(static_cast<uint64_t>(Number(json, "bytes_pushed"))).c_str(),
               FormatBytes(static_cast<uint64_t>(Number(json, "bytes_pulled"))).c_str());
  if (options_.accuracy) {
    const std::string data_set = DataSetOfModel(json.value("model", "")).title;
    std::string line = absl::StrFormat("%s accuracy: %.4f", data_set, Number(json, "test_accuracy"));
    if (json.contains("test_auc") && json["test_auc"].is_number()) {
      line += absl::StrFormat(", AUC %.4f", Number(json, "test_auc"));
    }
    PrintToStdout(line + "\n");
  }
}

}  // namespace muster
