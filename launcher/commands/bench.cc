// bench: the same training by every strategy, side by side.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/clock.h"
#include "base/file.h"
#include "base/stdout.h"
#include "launcher/bench/advice.h"
#include "launcher/bench/host_use.h"
#include "launcher/bench/job_metrics.h"
#include "launcher/bench/matrix.h"
#include "launcher/bench/prediction.h"
#include "launcher/bench/results_folder.h"
#include "launcher/bench/results_table.h"
#include "launcher/bench/results_view.h"
#include "launcher/commands/context.h"
#include "launcher/commands/interrupts.h"
#include "launcher/fleet.h"
#include "launcher/host_records.h"
#include "launcher/latency.h"
#include "launcher/network_namespaces.h"
#include "launcher/plan.h"
#include "launcher/runner.h"
#include "launcher/running_job.h"
#include "launcher/terminal.h"
#include "launcher/transport/shell_quote.h"
#include "launcher/virtual_hosts.h"

namespace muster {
namespace {

using Json = nlohmann::json;

// What is said of a job is its result, or how it failed; neither is the observer's.
class Silent final : public RunObserver {
 public:
  void OnView(const reconcile::View&) override {}
  void OnHostFacts(const HostFacts&) override {}
  void OnNotice(const std::string&) override {}
  void OnUpload(const UploadStep&) override {}
  void OnLog(const std::string&, const std::string&, bool) override {}
  void OnTraining(const TrainingPoint&) override {}
};

absl::StatusOr<bench::MatrixOptions> MatrixOf(const BenchFlags& flags) {
  bench::MatrixOptions options{.models = flags.models,
                               .workers = flags.workers,
                               .servers = flags.servers,
                               .servers_on_workers = flags.servers_on_workers,
                               .steps = flags.steps,
                               .device = flags.device,
                               .threads = flags.threads};
  for (const std::string& name : flags.strategies) {
    MUSTER_ASSIGN_OR_RETURN(options.strategies.emplace_back(), bench::ParseStrategy(name));
  }
  if (!flags.links.empty()) options.links.clear();
  for (const std::string& text : flags.links) {
    MUSTER_ASSIGN_OR_RETURN(const LinkRate rate, ParseLinkRate(text));
    // 1gbit and 1000mbit are one rate.
    if (std::ranges::find(options.links, rate) == options.links.end()) options.links.push_back(rate);
  }
  if (!flags.links.empty() && flags.virtual_hosts == 0) {
    return InvalidArgument("--link gives virtual hosts a rate; hosts of an inventory have what they have");
  }
  if (flags.target > 0 && flags.device.starts_with("wait:")) {
    return InvalidArgument("--target %g: with --device %s nothing is learned", flags.target, flags.device);
  }
  if (flags.batch_size > 0) options.batch_size = flags.batch_size;
  return options;
}

// As any shell takes it. What a shell leaves as it is needs no quotes.
std::string ShellCommand(const std::vector<std::string>& words) {
  constexpr char kPlain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789@%_+:,./-";
  std::string command;
  for (std::string word : words) {
    const bool is_plain = !word.empty() && word.find_first_not_of(kPlain) == std::string::npos;
    command += (command.empty() ? "" : " ") + (is_plain ? word : QuoteWord(bench::OneLine(std::move(word))));
  }
  return command;
}

// Updates from one evaluation to the next: there are twenty of them.
int64_t StepsOfEvaluation(const bench::Cell& cell, int64_t steps) {
  constexpr int64_t kEvaluations = 20;
  const int64_t gradients = cell.strategy == bench::Strategy::kAsyncServers ? cell.workers : 1;
  return std::max<int64_t>(1, steps * gradients / kEvaluations);
}

std::string NameOf(const bench::Cell& cell) {
  return absl::StrFormat("%s, %s, %s, %s", cell.model, bench::CompetitorName(cell),
                         bench::WorkersText(cell.workers), bench::LinkText(cell.link_bytes_per_second));
}

class Bench {
 public:
  Bench(const CommandContext& context, bench::MatrixOptions options)
      : context_(context),
        flags_(context.flags().bench),
        options_(std::move(options)),
        folder_(flags_.folder),
        jobs_(flags_.virtual_hosts > 0 ? JobStore(folder_ / "muster") : context.jobs()) {}

  absl::StatusOr<int> Run();

 private:
  absl::Status CheckPlans(const Inventory& hosts) const;
  absl::Status CheckHosts() const;
  absl::Status CheckVirtualHosts() const;
  VirtualHostsOptions VirtualOptions(LinkRate link) const;
  absl::Status RunOnLink(LinkRate link);
  absl::Status NoteLink(LinkRate link, const absl::Status& failure);
  absl::StatusOr<double> Latency(LinkRate link, const Inventory& hosts, const ConnectOptions& connect) const;
  absl::StatusOr<JobPlan> PlanOf(const bench::Cell& cell, const Inventory& hosts,
                                 const bench::MatrixOptions& options) const;
  absl::Status Measure(size_t cell, const Inventory& hosts, const ConnectOptions& connect);
  absl::Status MeasureTarget(size_t cell, const Inventory& hosts, const ConnectOptions& connect);
  absl::Status Note(const absl::Status& failure, bool has_numbers, bench::Measurement* measurement,
                    std::string* error);
  // What a job has left.
  struct Outcome {
    Json result;
    std::vector<bench::TaskUse> tasks;
    bench::StepBytes step_bytes;
    bench::TaskMetrics task_metrics;
  };
  absl::StatusOr<Outcome> RunOnce(const bench::Cell& cell, const Inventory& hosts,
                                  const ConnectOptions& connect, const bench::MatrixOptions& options);
  void Add(const Outcome& outcome, size_t cell);
  absl::Status WriteMeasured();
  absl::Status Write();
  absl::Status EndEarly(absl::Status why);
  absl::Status FailureOf(const RunResult& result) const;

  const CommandContext& context_;
  const BenchFlags& flags_;
  const bench::MatrixOptions options_;
  const std::filesystem::path folder_;
  const JobStore jobs_;
  std::optional<Inventory> inventory_;  // unset: virtual hosts
  bench::Results results_;
  std::vector<bench::Workload> workloads_;  // by measurement
  struct Repetitions {
    std::vector<double> accuracies;         // of each
    std::vector<double> seconds_to_target;  // of each; infinite: not reached
    std::vector<double> target_gaps;        // of those that reached it
    bench::ComputeSteps compute_steps;      // of all together
  };
  std::vector<Repetitions> repetitions_;  // by measurement
  bool has_failed_ = false;               // any job
  bool is_written_ = false;               // something that was measured
  std::string job_;                       // id of the last one
};

absl::StatusOr<int> Bench::Run() {
  if (flags_.virtual_hosts == 0) {
    MUSTER_ASSIGN_OR_RETURN(inventory_, context_.ReadInventoryFlag());
  }
  const int host_count = inventory_ ? static_cast<int>(inventory_->hosts.size()) : flags_.virtual_hosts;
  MUSTER_ASSIGN_OR_RETURN(const std::vector<bench::Cell> cells, bench::MakeMatrix(options_, host_count));
  results_.created = FormatWallTime(WallTimeMicros());
  results_.command = ShellCommand(flags_.command);
  results_.version = flags_.version;
  results_.steps = static_cast<int>(options_.steps);
  results_.where = inventory_ ? absl::StrFormat("%d hosts of %s", host_count, inventory_->path)
                              : absl::StrFormat("%d virtual hosts on one machine with %d cores", host_count,
                                                std::thread::hardware_concurrency());
  int wait_ms = 0;
  if (std::sscanf(options_.device.c_str(), "wait:%d", &wait_ms) == 1) {
    results_.compute_seconds_per_step = wait_ms / 1000.0;
  }
  if (flags_.target > 0) results_.target_accuracy = flags_.target;
  for (const bench::Cell& cell : cells) {
    results_.measurements.push_back(
        {.cell = cell, .error = "not run", .target_error = flags_.target > 0 ? "not run" : ""});
    workloads_.push_back({.cell = cell});
  }
  repetitions_.resize(cells.size());
  results_.unfinished = "it still ran";
  MUSTER_RETURN_IF_ERROR(
      CheckPlans(inventory_ ? *inventory_ : VirtualHosts::InventoryOf(VirtualOptions({}))));
  MUSTER_RETURN_IF_ERROR(inventory_ ? CheckHosts() : CheckVirtualHosts());
  if (const absl::Status made = bench::MakeResultsFolder(folder_); !made.ok()) {
    return InvalidArgument("--folder %s: %s", folder_.string(), std::string(made.message()));
  }
  const std::string times = flags_.repeat == 1 ? "once" : absl::StrFormat("%d times", flags_.repeat);
  std::fprintf(stderr, "%d %s, %s each, on %s\n", static_cast<int>(cells.size()),
               cells.size() == 1 ? "job" : "jobs", times.c_str(), results_.where.c_str());
  CatchInterrupts();  // so that virtual hosts are not left behind
  for (const LinkRate link : options_.links) {
    const absl::Status status = RunOnLink(link);
    if (Interrupts() > 0) return EndEarly(Cancelled("interrupted"));
    if (!status.ok()) return EndEarly(status);
  }
  std::fprintf(stderr, "predicting up to 10,000 workers\n");
  const absl::Status predicted = bench::AddCurves(
      workloads_, [] { return Interrupts() > 0 ? Cancelled("interrupted") : absl::OkStatus(); }, &results_);
  if (!predicted.ok()) return EndEarly(predicted);
  results_.unfinished.clear();
  if (const absl::Status written = Write(); !written.ok()) return EndEarly(written);
  if (context_.flags().format == OutputFormat::kJson) {
    PrintToStdout(bench::ToJson(results_));
  } else {
    const size_t width = IsTerminal(STDOUT_FILENO) ? TerminalWidth(STDOUT_FILENO) : 0;
    PrintToStdout(bench::ResultsText(results_, width) + "\n");
    PrintToStdout("Measured: " + bench::SettingsText(results_) + "\n");
    PrintToStdout(bench::ToText(bench::MakeAdvice(results_)));
  }
  std::fprintf(stderr, "%s\n", (folder_ / "report.html").c_str());
  return has_failed_ ? 1 : 0;
}

// What cannot be planned, as where a model's data are missing, is found out without a connection, and before
// hours of jobs of other models: of each the cell with the most tasks.
absl::Status Bench::CheckPlans(const Inventory& hosts) const {
  const auto tasks = [](const bench::Cell& cell) { return cell.workers + cell.servers; };
  std::map<std::string, bench::Cell> largest;  // by model
  for (const bench::Measurement& measurement : results_.measurements) {
    bench::Cell& cell = largest.try_emplace(measurement.cell.model, measurement.cell).first->second;
    if (tasks(measurement.cell) > tasks(cell)) cell = measurement.cell;
  }
  for (const auto& [model, cell] : largest) MUSTER_RETURN_IF_ERROR(PlanOf(cell, hosts, options_).status());
  return absl::OkStatus();
}

// Those that any cell runs on, before the first one: a job on a host that is not there waits for it.
absl::Status Bench::CheckHosts() const {
  Inventory used;
  for (const bench::Measurement& measurement : results_.measurements) {
    Inventory hosts = bench::HostsFor(measurement.cell, *inventory_);
    if (hosts.hosts.size() > used.hosts.size()) used = std::move(hosts);
  }
  const std::vector<record::Host> hosts = AllHosts(used);
  const std::vector<absl::Status> statuses =
      AskHosts(hosts, context_.connect_options(hosts), context_.connect_timeout(),
               [](size_t, AgentConnection&) { return absl::OkStatus(); });
  const auto failed = std::count_if(statuses.begin(), statuses.end(),
                                    [](const absl::Status& status) { return !status.ok(); });
  if (failed == 0) return absl::OkStatus();
  for (const absl::Status& status : statuses) {
    if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  }
  return Unavailable("%d of %d hosts cannot be used: nothing was run", failed, statuses.size());
}

// Before anything is made: exit status 1 would say that a job has failed.
absl::Status Bench::CheckVirtualHosts() const {
  const absl::Status may = CheckMayMakeNamespaces();
  if (may.ok()) return may;
  return InvalidArgument("--virtual %d: %s", flags_.virtual_hosts, std::string(may.message()));
}

absl::StatusOr<JobPlan> Bench::PlanOf(const bench::Cell& cell, const Inventory& hosts,
                                      const bench::MatrixOptions& options) const {
  MUSTER_ASSIGN_OR_RETURN(const Job job, ParseJob(bench::JobText(cell, options), "bench", "/"));
  return MakePlan(job, bench::HostsFor(cell, hosts),
                  {.installation = context_.installation(),
                   .data_folder = context_.data_folder(),
                   .data_cache = context_.data_cache()});
}

// Between the first two hosts of the first cell that has as many. NotFound: none has.
absl::StatusOr<double> Bench::Latency(LinkRate link, const Inventory& hosts,
                                      const ConnectOptions& connect) const {
  for (const bench::Measurement& measurement : results_.measurements) {
    const bench::Cell& cell = measurement.cell;
    if (cell.link_bytes_per_second != bench::BytesPerSecond(link)) continue;
    if (bench::HostsFor(cell, hosts).hosts.size() < 2) continue;
    MUSTER_ASSIGN_OR_RETURN(const JobPlan plan, PlanOf(cell, hosts, options_));
    if (plan.record.hosts_size() < 2) continue;
    return MeasureLatency(plan.record.hosts(0), plan.record.hosts(1), connect,
                          Now() + context_.connect_timeout());
  }
  return NotFound("no job is on two hosts");
}

VirtualHostsOptions Bench::VirtualOptions(LinkRate link) const {
  return {.count = flags_.virtual_hosts, .rate = link};
}

// All cells once, then all again: what changes about the machine changes for all.
absl::Status Bench::RunOnLink(LinkRate link) {
  std::unique_ptr<VirtualHosts> made;
  Inventory hosts = inventory_.value_or(Inventory());
  ConnectOptions connect = context_.connect_options(AllHosts(hosts));
  if (!inventory_) {
    auto created = VirtualHosts::Create(VirtualOptions(link));
    if (!created.ok()) return NoteLink(link, created.status());
    made = *std::move(created);
    hosts = made->inventory();
    connect.local_hosts = made->local_hosts();
  }
  bench::Link& measured = results_.links.emplace_back();
  measured.bytes_per_second = bench::BytesPerSecond(link);
  const auto latency = Latency(link, hosts, connect);
  if (Interrupts() > 0) return Cancelled("interrupted");
  if (latency.ok()) {
    measured.latency_seconds = *latency;
  } else if (!absl::IsNotFound(latency.status())) {
    std::fprintf(stderr, "the latency of the links is not known: %s\n",
                 std::string(latency.status().message()).c_str());
  }
  for (int time = 0; time < flags_.repeat; ++time) {
    for (size_t i = 0; i < results_.measurements.size(); ++i) {
      if (results_.measurements[i].cell.link_bytes_per_second != bench::BytesPerSecond(link)) continue;
      MUSTER_RETURN_IF_ERROR(Measure(i, hosts, connect));
      MUSTER_RETURN_IF_ERROR(WriteMeasured());
      if (!results_.target_accuracy) continue;
      MUSTER_RETURN_IF_ERROR(MeasureTarget(i, hosts, connect));
      MUSTER_RETURN_IF_ERROR(WriteMeasured());
    }
  }
  if (made == nullptr) return absl::OkStatus();
  if (const absl::Status removed = made->Remove(); !removed.ok()) {
    std::fprintf(stderr, "%s\n", std::string(removed.message()).c_str());
  }
  return absl::OkStatus();
}

// Of a link that cannot be made the cells say so, and those of others are run. Fails when there is no other,
// or none can be.
absl::Status Bench::NoteLink(LinkRate link, const absl::Status& failure) {
  if (options_.links.size() == 1 || absl::IsPermissionDenied(failure) || Interrupts() > 0) return failure;
  has_failed_ = true;
  const std::string why(failure.message());
  for (bench::Measurement& measurement : results_.measurements) {
    if (measurement.cell.link_bytes_per_second == bench::BytesPerSecond(link)) measurement.error = why;
  }
  std::fprintf(stderr, "%s: %s\n", bench::LinkText(bench::BytesPerSecond(link)).c_str(), why.c_str());
  return WriteMeasured();
}

// What fails is noted, and the others are run. Fails when there is no going on.
absl::Status Bench::Measure(size_t i, const Inventory& hosts, const ConnectOptions& connect) {
  bench::Measurement& measurement = results_.measurements[i];
  const auto outcome = RunOnce(measurement.cell, hosts, connect, options_);
  if (!outcome.ok()) {
    return Note(outcome.status(), !measurement.step_seconds.empty(), &measurement, &measurement.error);
  }
  Add(*outcome, i);
  // A wait learns nothing, and takes as long in all steps.
  if (!results_.compute_seconds_per_step) {
    repetitions_[i].accuracies.push_back(outcome->result["test_accuracy"]);
    measurement.test_accuracy = bench::MedianOf(repetitions_[i].accuracies);
    for (const auto& [task, metrics] : outcome->task_metrics) repetitions_[i].compute_steps.Add(metrics);
    workloads_[i].compute_factors = repetitions_[i].compute_steps.Factors();
  }
  std::fprintf(stderr, "%s: %s\n", NameOf(measurement.cell).c_str(),
               bench::SecondsText(measurement.step_seconds.back()).c_str());
  return absl::OkStatus();
}

// By a job of its own: what is timed is not to wait for evaluations.
absl::Status Bench::MeasureTarget(size_t i, const Inventory& hosts, const ConnectOptions& connect) {
  bench::Measurement& measurement = results_.measurements[i];
  bench::MatrixOptions options = options_;
  options.eval_every = StepsOfEvaluation(measurement.cell, options.steps);
  std::vector<double>& all = repetitions_[i].seconds_to_target;
  std::vector<double>& gaps = repetitions_[i].target_gaps;
  const auto outcome = RunOnce(measurement.cell, hosts, connect, options);
  if (!outcome.ok()) {
    return Note(outcome.status(), !all.empty(), &measurement, &measurement.target_error);
  }
  const bench::TargetTime time = bench::TargetTimeOf(
      ReadFile(jobs_.JobFolder(job_) / kMetricsFile).value_or(""), *results_.target_accuracy);
  all.push_back(time.seconds);
  if (std::isfinite(time.seconds)) gaps.push_back(time.gap_seconds);
  measurement.target_error.clear();
  const double seconds = bench::MedianOf(all);
  const bool is_reached = std::isfinite(seconds);
  measurement.seconds_to_target = is_reached ? std::optional(seconds) : std::nullopt;
  measurement.target_gap_seconds = is_reached ? bench::MedianOf(gaps) : 0;
  std::fprintf(
      stderr, "%s: accuracy %g %s\n", NameOf(measurement.cell).c_str(), *results_.target_accuracy,
      std::isfinite(all.back()) ? ("after " + bench::SecondsText(all.back())).c_str() : "not reached");
  return absl::OkStatus();
}

// `has_numbers`: of other repetitions.
absl::Status Bench::Note(const absl::Status& failure, bool has_numbers, bench::Measurement* measurement,
                         std::string* error) {
  if (Interrupts() > 0) return Cancelled("interrupted");
  if (absl::IsInvalidArgument(failure)) return failure;
  has_failed_ = true;
  const std::string why(failure.message());
  ++measurement->failures;
  measurement->failure = (error == &measurement->target_error ? bench::kToTarget : "") + why;
  // What others have measured stays.
  if (!has_numbers) *error = why;
  std::fprintf(stderr, "%s: %s\n", NameOf(measurement->cell).c_str(), why.c_str());
  return absl::OkStatus();
}

absl::StatusOr<Bench::Outcome> Bench::RunOnce(const bench::Cell& cell, const Inventory& hosts,
                                              const ConnectOptions& connect,
                                              const bench::MatrixOptions& options) {
  MUSTER_ASSIGN_OR_RETURN(JobPlan plan, PlanOf(cell, hosts, options));
  MUSTER_RETURN_IF_ERROR(BeginJob(&plan.record));
  job_ = plan.record.id();
  MUSTER_ASSIGN_OR_RETURN(const JobLock lock, jobs_.Lock(job_));
  MUSTER_RETURN_IF_ERROR(jobs_.Save(plan.record));
  RunOptions run{.connect = connect,
                 .follow_logs = false,
                 .fetch_task_metrics = true,
                 .run_deadline = std::chrono::duration_cast<Duration>(
                     std::chrono::duration<double>(flags_.job_timeout_s))};
  StopWhenInterrupted(&run);
  Silent observer;
  MUSTER_ASSIGN_OR_RETURN(const RunResult result, RunJob(jobs_, plan.record, plan.contents, run, observer));
  if (result.outcome.exit_code != 0) return FailureOf(result);
  MUSTER_RETURN_IF_ERROR(result.fetched);
  Json json = Json::parse(result.result_json, nullptr, /*allow_exceptions=*/false);
  if (json.is_object() && json.contains("chief_steps") && json["chief_steps"] == 0) {
    return DataLoss("the other workers made all steps without worker:0, which times them: take more --steps");
  }
  for (const char* key : {"steps_per_second", "samples_per_second", "chief_steps", "bytes_pushed",
                          "bytes_pulled", "batch_size", "parameter_bytes", "test_accuracy"}) {
    if (!json.is_object() || !json.contains(key) || !json[key].is_number()) {
      return DataLoss("the result record has no number \"%s\"", key);
    }
  }
  if (json["steps_per_second"] <= 0) return DataLoss("the result record says that no step was made");
  const bench::StepBytes step_bytes = bench::StepBytesOf(cell, json, result.task_metrics);
  return Outcome{.result = std::move(json),
                 .tasks = bench::TaskUses(plan.record, result.task_metrics),
                 .step_bytes = step_bytes,
                 .task_metrics = result.task_metrics};
}

void Bench::Add(const Outcome& outcome, size_t cell) {
  bench::Measurement* const measurement = &results_.measurements[cell];
  bench::Workload* const workload = &workloads_[cell];
  const Json& result = outcome.result;
  measurement->error.clear();
  bench::AddRepetition(bench::HostUses(outcome.tasks), measurement->step_seconds.size(), &measurement->hosts);
  measurement->step_seconds.push_back(bench::StepSecondsOf(result));
  const double samples_per_step = double(result["samples_per_second"]) / double(result["steps_per_second"]);
  measurement->batch_size = result["batch_size"];
  measurement->samples_per_second = samples_per_step / measurement->median_step_seconds();
  measurement->cpu_seconds_per_step = 0;
  for (const bench::HostUse& host : measurement->hosts) {
    measurement->cpu_seconds_per_step += host.busy_processors * measurement->median_step_seconds();
  }
  measurement->sent_bytes_per_step = outcome.step_bytes.sent;
  measurement->received_bytes_per_step = outcome.step_bytes.received;
  workload->parameter_bytes = result["parameter_bytes"];
  workload->pushed_bytes = measurement->sent_bytes_per_step;
  workload->pulled_bytes = measurement->received_bytes_per_step;
  workload->samples_per_step = measurement->batch_size;
}

// What the task that is to blame said last tells why. Virtual hosts, and what is there, are gone afterwards.
absl::Status Bench::FailureOf(const RunResult& result) const {
  std::string text = result.outcome.message;
  const bool is_late = result.outcome.exit_code == ExitCodeFor(absl::DeadlineExceededError(""));
  if (is_late && !result.outcome.first_cause) {
    text += absl::StrFormat(" (--job-timeout %g)", flags_.job_timeout_s);
  }
  if (!result.last_words.empty()) text += "; it said last: " + bench::OneLine(result.last_words.back());
  if (inventory_ && result.outcome.first_cause) {
    text += absl::StrFormat(" (muster logs %s %s)", job_, result.outcome.first_cause->task);
  }
  return Unavailable("%s", text);
}

// What was measured stays, and says that it is not all.
absl::Status Bench::EndEarly(absl::Status why) {
  if (!is_written_) return why;
  results_.unfinished = std::string(why.message());
  Write().IgnoreError();  // the one before is there
  return {why.code(), absl::StrFormat("%s; what was measured is in %s", results_.unfinished,
                                      (folder_ / "results.json").string())};
}

absl::Status Bench::WriteMeasured() {
  bench::AddEfficiencyAndNoise(&results_);
  bench::Predict(workloads_, &results_);
  return Write();
}

absl::Status Bench::Write() {
  if (!is_written_) {
    MUSTER_ASSIGN_OR_RETURN(const auto kept, bench::KeepEarlierResults(folder_));
    for (const std::filesystem::path& path : kept) {
      std::fprintf(stderr, "of an earlier benchmark, now under this name: %s\n", path.c_str());
    }
  }
  MUSTER_RETURN_IF_ERROR(bench::WriteResults(folder_, results_));
  is_written_ = true;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int> BenchCommand(const CommandContext& context) {
  MUSTER_ASSIGN_OR_RETURN(bench::MatrixOptions options, MatrixOf(context.flags().bench));
  return Bench(context, std::move(options)).Run();
}

}  // namespace muster
