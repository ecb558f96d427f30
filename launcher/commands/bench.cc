// bench: the same training by every strategy, side by side.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "base/clock.h"
#include "base/file.h"
#include "base/stdout.h"
#include "launcher/bench/advice.h"
#include "launcher/bench/matrix.h"
#include "launcher/bench/prediction.h"
#include "launcher/bench/report.h"
#include "launcher/bench/results_table.h"
#include "launcher/bench/results_view.h"
#include "launcher/commands/context.h"
#include "launcher/commands/interrupts.h"
#include "launcher/plan.h"
#include "launcher/runner.h"
#include "launcher/virtual_hosts.h"

namespace muster {
namespace {

using Json = nlohmann::json;

// What is said of a job is its result, or how it failed; neither is the observer's.
class Silent final : public RunObserver {
 public:
  void OnView(const reconcile::View&) override {}
  void OnHostFacts(const HostFacts&) override {}
  void OnUpload(const UploadStep&) override {}
  void OnLog(const std::string&, const std::string&, bool) override {}
  void OnMetrics(const std::string&) override {}
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
    MUSTER_ASSIGN_OR_RETURN(options.links.emplace_back(), ParseLinkRate(text));
  }
  if (!flags.links.empty() && flags.virtual_hosts == 0) {
    return InvalidArgument("--link gives virtual hosts a rate; hosts of an inventory have what they have");
  }
  if (flags.batch_size > 0) options.batch_size = flags.batch_size;
  if (flags.target > 0) options.eval_every = std::max<int64_t>(1, flags.steps / 20);
  return options;
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
  absl::Status RunOnLink(LinkRate link);
  absl::Status Measure(size_t cell, const Inventory& hosts, const ConnectOptions& connect);
  absl::StatusOr<Json> RunOnce(const bench::Cell& cell, const Inventory& hosts,
                               const ConnectOptions& connect);
  void Add(const Json& result, bench::Measurement* measurement, bench::Workload* workload);
  std::optional<double> SecondsToTarget() const;
  absl::Status Write();

  const CommandContext& context_;
  const BenchFlags& flags_;
  const bench::MatrixOptions options_;
  const std::filesystem::path folder_;
  const JobStore jobs_;
  std::optional<Inventory> inventory_;  // unset: virtual hosts
  bench::Results results_;
  std::vector<bench::Workload> workloads_;  // by measurement
  std::string job_;                         // id of the last one
};

absl::StatusOr<int> Bench::Run() {
  if (flags_.virtual_hosts == 0) {
    MUSTER_ASSIGN_OR_RETURN(inventory_, context_.ReadInventoryFlag());
  }
  const int host_count = inventory_ ? static_cast<int>(inventory_->hosts.size()) : flags_.virtual_hosts;
  MUSTER_ASSIGN_OR_RETURN(const std::vector<bench::Cell> cells, bench::MakeMatrix(options_, host_count));
  results_.created = FormatWallTime(WallTimeMicros());
  results_.command = flags_.command;
  results_.where = inventory_ ? absl::StrFormat("%d hosts of %s", host_count, inventory_->path)
                              : absl::StrFormat("%d virtual hosts on one machine with %d cores", host_count,
                                                std::thread::hardware_concurrency());
  int wait_ms = 0;
  if (std::sscanf(options_.device.c_str(), "wait:%d", &wait_ms) == 1) {
    results_.compute_seconds_per_step = wait_ms / 1000.0;
  }
  if (flags_.target > 0) results_.target_accuracy = flags_.target;
  for (const bench::Cell& cell : cells) {
    results_.measurements.push_back({.cell = cell, .error = "not run"});
    workloads_.push_back({.cell = cell});
  }
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) return InvalidArgument("--folder %s: %s", folder_.string(), error.message());
  std::fprintf(stderr, "%d jobs, %d times each, on %s\n", static_cast<int>(cells.size()), flags_.repeat,
               results_.where.c_str());
  CatchInterrupts();  // so that virtual hosts are not left behind
  for (const LinkRate link : options_.links) {
    const absl::Status status = RunOnLink(link);
    if (Interrupts() > 0) return Cancelled("interrupted");
    MUSTER_RETURN_IF_ERROR(status);
  }
  bench::Predict(workloads_, &results_);
  MUSTER_RETURN_IF_ERROR(Write());
  if (context_.flags().format == OutputFormat::kJson) {
    PrintToStdout(bench::ToJson(results_));
  } else {
    PrintToStdout(bench::ResultsTable(results_).ToText() + "\n");
    PrintToStdout(bench::ToText(bench::MakeAdvice(results_)));
  }
  std::fprintf(stderr, "%s\n", (folder_ / "report.html").c_str());
  const auto has_failed = [](const auto& measurement) { return !measurement.error.empty(); };
  return std::any_of(results_.measurements.begin(), results_.measurements.end(), has_failed) ? 1 : 0;
}

// All cells once, then all again: what changes about the machine changes for all.
absl::Status Bench::RunOnLink(LinkRate link) {
  std::unique_ptr<VirtualHosts> made;
  Inventory hosts = inventory_.value_or(Inventory());
  ConnectOptions connect = context_.connect_options();
  if (!inventory_) {
    MUSTER_ASSIGN_OR_RETURN(made, VirtualHosts::Create({.count = flags_.virtual_hosts, .rate = link}));
    hosts = made->inventory();
    connect.local_hosts = made->local_hosts();
  }
  for (int time = 0; time < flags_.repeat; ++time) {
    for (size_t i = 0; i < results_.measurements.size(); ++i) {
      if (results_.measurements[i].cell.link_bytes_per_second != bench::BytesPerSecond(link)) continue;
      MUSTER_RETURN_IF_ERROR(Measure(i, hosts, connect));
      MUSTER_RETURN_IF_ERROR(Write());
    }
  }
  return made == nullptr ? absl::OkStatus() : made->Remove();
}

// What fails is noted, and the others are run. Fails when there is no going on.
absl::Status Bench::Measure(size_t i, const Inventory& hosts, const ConnectOptions& connect) {
  bench::Measurement& measurement = results_.measurements[i];
  const bench::Cell& cell = measurement.cell;
  const auto result = RunOnce(cell, hosts, connect);
  if (Interrupts() > 0) return Cancelled("interrupted");
  if (absl::IsInvalidArgument(result.status())) return result.status();
  if (result.ok()) {
    Add(*result, &measurement, &workloads_[i]);
  } else {
    measurement.error = std::string(result.status().message());
  }
  std::fprintf(
      stderr, "%s, %s, %s, %s: %s\n", cell.model.c_str(), bench::CompetitorName(cell).c_str(),
      bench::WorkersText(cell.workers).c_str(), bench::LinkText(cell.link_bytes_per_second).c_str(),
      result.ok() ? bench::SecondsText(measurement.step_seconds.back()).c_str() : measurement.error.c_str());
  return absl::OkStatus();
}

absl::StatusOr<Json> Bench::RunOnce(const bench::Cell& cell, const Inventory& hosts,
                                    const ConnectOptions& connect) {
  MUSTER_ASSIGN_OR_RETURN(const Job job, ParseJob(bench::JobText(cell, options_), "bench", "/"));
  MUSTER_ASSIGN_OR_RETURN(JobPlan plan, MakePlan(job, bench::HostsFor(cell, hosts),
                                                 {.installation = context_.installation(),
                                                  .data_folder = context_.data_folder(),
                                                  .data_cache = context_.data_cache()}));
  MUSTER_RETURN_IF_ERROR(BeginJob(&plan.record));
  job_ = plan.record.id();
  MUSTER_ASSIGN_OR_RETURN(const JobLock lock, jobs_.Lock(job_));
  MUSTER_RETURN_IF_ERROR(jobs_.Save(plan.record));
  RunOptions run{.connect = connect,
                 .follow_logs = false,
                 .run_deadline = std::chrono::duration_cast<Duration>(
                     std::chrono::duration<double>(flags_.job_timeout_s))};
  StopWhenInterrupted(&run);
  Silent observer;
  MUSTER_ASSIGN_OR_RETURN(const RunResult result, RunJob(jobs_, plan.record, plan.contents, run, observer));
  if (result.outcome.exit_code != 0) return Unavailable("%s", result.outcome.message);
  MUSTER_RETURN_IF_ERROR(result.fetched);
  Json json = Json::parse(result.result_json, nullptr, /*allow_exceptions=*/false);
  for (const char* key : {"steps", "seconds_training", "samples_per_second", "bytes_pushed", "bytes_pulled",
                          "batch_size", "parameter_bytes", "test_accuracy"}) {
    if (!json.is_object() || !json.contains(key) || !json[key].is_number()) {
      return DataLoss("the result record has no number \"%s\"", key);
    }
  }
  if (json["steps"] <= 0) return DataLoss("the result record says that no step was made");
  return json;
}

void Bench::Add(const Json& result, bench::Measurement* measurement, bench::Workload* workload) {
  const bench::Cell& cell = measurement->cell;
  const double steps = result["steps"];
  const double own_steps = cell.strategy == bench::Strategy::kAsyncServers ? steps / cell.workers : steps;
  measurement->error.clear();
  measurement->step_seconds.push_back(double(result["seconds_training"]) / steps);
  const double samples_per_step =
      double(result["samples_per_second"]) * double(result["seconds_training"]) / steps;
  measurement->samples_per_second = samples_per_step / measurement->median_step_seconds();
  measurement->sent_bytes_per_step = double(result["bytes_pushed"]) / own_steps;
  measurement->received_bytes_per_step = double(result["bytes_pulled"]) / own_steps;
  if (results_.compute_seconds_per_step == 0) measurement->test_accuracy = double(result["test_accuracy"]);
  measurement->seconds_to_target = SecondsToTarget();
  workload->parameter_bytes = result["parameter_bytes"];
  workload->pushed_bytes = measurement->sent_bytes_per_step;
  workload->pulled_bytes = measurement->received_bytes_per_step;
  workload->samples_per_step = result["batch_size"];
}

std::optional<double> Bench::SecondsToTarget() const {
  if (!results_.target_accuracy) return std::nullopt;
  std::istringstream lines(ReadFile(jobs_.JobFolder(job_) / kMetricsFile).value_or(""));
  for (std::string line; std::getline(lines, line);) {
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto number = [&](const char* key) {
      return json.is_object() && json.contains(key) && json[key].is_number() ? double(json[key]) : -1.0;
    };
    if (number("test_accuracy") >= *results_.target_accuracy) return number("seconds");
  }
  return std::nullopt;
}

absl::Status Bench::Write() {
  bench::AddEfficiencyAndNoise(&results_);
  MUSTER_RETURN_IF_ERROR(WriteFileAtomically(folder_ / "results.json", bench::ToJson(results_)));
  return WriteFileAtomically(folder_ / "report.html", bench::ReportHtml(results_));
}

}  // namespace

absl::StatusOr<int> BenchCommand(const CommandContext& context) {
  MUSTER_ASSIGN_OR_RETURN(bench::MatrixOptions options, MatrixOf(context.flags().bench));
  return Bench(context, std::move(options)).Run();
}

}  // namespace muster
