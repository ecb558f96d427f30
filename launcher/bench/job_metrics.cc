#include "launcher/bench/job_metrics.h"

#include <absl/strings/numbers.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "launcher/task_metrics.h"

namespace muster::bench {
namespace {

using Json = nlohmann::json;

std::optional<double> ValueOf(const std::vector<MetricSample>& samples, const char* name) {
  for (const MetricSample& sample : samples) {
    if (sample.name == name) return sample.value;
  }
  return std::nullopt;
}

// Of steps that computed so long, by the upper bound of their bucket.
std::map<double, uint64_t> ComputeBuckets(const std::vector<MetricSample>& samples) {
  std::map<double, uint64_t> counts;
  double below = 0;
  for (const MetricSample& sample : samples) {  // they come in order, each with all below it
    const auto phase = sample.labels.find("phase");
    const auto bound = sample.labels.find("le");
    double seconds = 0;
    if (sample.name != "muster_worker_step_seconds_bucket" || phase == sample.labels.end() ||
        phase->second != "compute" || bound == sample.labels.end() ||
        !absl::SimpleAtod(bound->second, &seconds)) {
      continue;
    }
    counts[seconds] = static_cast<uint64_t>(std::max(0.0, std::min(sample.value, 1e15) - below));
    below = sample.value;
  }
  return counts;
}

}  // namespace

std::vector<TaskUse> TaskUses(const record::JobRecord& record, const TaskMetrics& task_metrics) {
  std::vector<TaskUse> uses;
  for (const record::Task& task : record.tasks()) {
    const auto text = task_metrics.find(task.id());
    if (text == task_metrics.end()) continue;
    const auto samples = ParseMetrics(text->second);
    if (!samples.ok()) continue;
    uses.push_back({.task = task.id(),
                    .host = task.host(),
                    .seconds = ValueOf(*samples, "muster_training_seconds").value_or(0),
                    .cpu_seconds = ValueOf(*samples, "muster_training_cpu_seconds").value_or(0),
                    .sent_bytes = ValueOf(*samples, "muster_training_host_sent_bytes"),
                    .received_bytes = ValueOf(*samples, "muster_training_host_received_bytes")});
  }
  std::stable_partition(uses.begin(), uses.end(),
                        [](const TaskUse& use) { return !use.task.starts_with("ps:"); });
  return uses;
}

StepBytes StepBytesOf(const Cell& cell, const Json& result, const TaskMetrics& task_metrics) {
  const double reduced = cell.strategy == Strategy::kHybrid
                             ? 2.0 * (cell.workers - 1) / cell.workers * double(result["parameter_bytes"])
                             : 0;
  const auto per_step = [&](double sent, double received, double steps) {
    return StepBytes{.sent = sent / steps,
                     .received = ReceivedBytesPerStep(cell.strategy, received, steps, reduced)};
  };
  if (const auto text = task_metrics.find("worker:0"); text != task_metrics.end()) {
    const auto samples = ParseMetrics(text->second).value_or(std::vector<MetricSample>());
    const double steps = ValueOf(samples, "muster_worker_steps_total").value_or(0);
    const auto sent = ValueOf(samples, "muster_worker_sent_bytes_total");
    const auto received = ValueOf(samples, "muster_worker_received_bytes_total");
    if (steps > 0 && sent && received) return per_step(*sent, *received, steps);
  }
  return per_step(result["bytes_pushed"], result["bytes_pulled"], result["chief_steps"]);
}

double StepSecondsOf(const Json& result) {
  const auto number = [&](const char* key) {
    return result.contains(key) && result[key].is_number() ? double(result[key]) : 0.0;
  };
  const double seconds = number("seconds_after_first_step"), steps = number("steps_after_first_step");
  return seconds > 0 && steps > 0 ? seconds / steps : 1 / double(result["steps_per_second"]);
}

TargetTime TargetTimeOf(const std::string& metrics_jsonl, double accuracy) {
  std::istringstream lines(metrics_jsonl);
  double before = 0;
  for (std::string line; std::getline(lines, line);) {
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto number = [&](const char* key) {
      return json.is_object() && json.contains(key) && json[key].is_number() ? double(json[key]) : -1.0;
    };
    const double seconds = number("seconds");
    if (number("test_accuracy") < 0 || seconds < 0) continue;
    if (number("test_accuracy") >= accuracy) return {.seconds = seconds, .gap_seconds = seconds - before};
    before = seconds;
  }
  return {};
}

void ComputeSteps::Add(const std::string& metrics) {
  std::map<double, uint64_t> counts =
      ComputeBuckets(ParseMetrics(metrics).value_or(std::vector<MetricSample>()));
  const auto longest =
      std::find_if(counts.rbegin(), counts.rend(), [](const auto& bucket) { return bucket.second > 0; });
  if (longest != counts.rend()) --longest->second;
  for (const auto& [bound, count] : counts) counts_[bound] += count;
}

std::vector<double> ComputeSteps::Factors() const {
  constexpr uint64_t kMost = 1000;
  uint64_t all = 0;
  for (const auto& [bound, count] : counts_) all += count;
  const uint64_t quantiles = std::min(all, kMost);
  std::vector<double> factors;
  double median_bound = 0;  // of its bucket, the upper one
  double lower = 0;
  uint64_t below = 0;
  for (const auto& [bound, count] : counts_) {
    below += count;
    if (median_bound == 0 && 2 * below >= all) median_bound = bound;
    const double factor = median_bound > 0 ? std::max(1.0, lower / median_bound) : 1;
    while (factors.size() < quantiles && (2 * factors.size() + 1) * all <= 2 * below * quantiles) {
      factors.push_back(factor);
    }
    lower = bound;
  }
  return factors;
}

}  // namespace muster::bench
