#include "launcher/task_metrics.h"

#include <absl/strings/ascii.h>
#include <absl/strings/escaping.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace muster {
namespace {

using Labels = std::map<std::string, std::string>;

// Up to the closing brace, which is removed, too. False: something else.
bool TakeLabels(std::string_view* text, Labels* labels) {
  while (!text->starts_with('}')) {
    const size_t equals = text->find("=\"");
    if (equals == std::string_view::npos) return false;
    std::string& value = (*labels)[std::string(text->substr(0, equals))];
    size_t at = equals + 2;
    for (; at < text->size() && (*text)[at] != '"'; ++at) {
      if ((*text)[at] == '\\' && at + 1 < text->size()) ++at;
      if (absl::ascii_iscntrl(static_cast<unsigned char>((*text)[at]))) return false;  // it is shown
      value += (*text)[at];
    }
    if (at >= text->size()) return false;
    text->remove_prefix(at + 1);
    if (text->starts_with(',')) text->remove_prefix(1);
  }
  text->remove_prefix(1);
  return true;
}

bool ParseLine(std::string_view line, MetricSample* sample) {
  const size_t end = line.find_first_of("{ ");
  if (end == 0 || end == std::string_view::npos) return false;
  sample->name = line.substr(0, end);
  line.remove_prefix(end);
  if (line.starts_with('{')) {
    line.remove_prefix(1);
    if (!TakeLabels(&line, &sample->labels)) return false;
  }
  return line.starts_with(' ') && absl::SimpleAtod(std::string(line.substr(1)), &sample->value);
}

bool IsCount(const std::optional<double>& value) { return value && *value >= 0 && *value < 9e18; }

bool Has(const MetricSample& sample, const std::string& name, const Labels& labels) {
  return sample.name == name && std::all_of(labels.begin(), labels.end(), [&](const auto& label) {
           const auto found = sample.labels.find(label.first);
           return found != sample.labels.end() && found->second == label.second;
         });
}

// The samples of one task.
class Samples {
 public:
  explicit Samples(const std::vector<MetricSample>& samples) : samples_(samples) {}

  // Of the sample that has these labels and maybe others.
  std::optional<double> Find(const std::string& name, const Labels& labels = {}) const {
    const auto found = std::find_if(samples_.begin(), samples_.end(),
                                    [&](const MetricSample& sample) { return Has(sample, name, labels); });
    return found == samples_.end() ? std::nullopt : std::optional(found->value);
  }

  Cell Number(const std::string& name, const Labels& labels = {}) const {
    const auto value = Find(name, labels);
    return IsCount(value) ? Cell(static_cast<int64_t>(*value)) : Cell();
  }
  Cell Bytes(const std::string& name) const {
    const auto value = Find(name);
    return IsCount(value) ? Cell::Bytes(static_cast<uint64_t>(*value)) : Cell();
  }
  Cell Seconds(const std::string& name, const Labels& labels) const {
    const auto value = Find(name, labels);
    return value && std::isfinite(*value) ? Cell::Seconds(*value) : Cell();
  }
  Cell MeanSeconds(const std::string& name, const Labels& labels) const {
    const auto count = Find(name + "_count", labels), sum = Find(name + "_sum", labels);
    return count && sum && *count > 0 && std::isfinite(*sum) ? Cell::Seconds(*sum / *count) : Cell();
  }

  // "0: 120, 1: 7, 4: 1": the upper bounds of buckets in which there is anything, and how much.
  Cell Buckets(const std::string& name, const Labels& labels) const {
    std::vector<std::string> buckets;
    double below = 0;
    for (const MetricSample& sample : samples_) {  // they come in order
      const auto bound = sample.labels.find("le");
      if (bound == sample.labels.end() || !Has(sample, name + "_bucket", labels)) continue;
      if (sample.value > below) {
        buckets.push_back(absl::StrFormat("%s: %.0f", bound->second, sample.value - below));
      }
      below = sample.value;
    }
    return absl::StrJoin(buckets, ", ");
  }

  // "ps:1 (4.2 s)": those for which it has lasted.
  Cell Long(const std::string& name, const std::string& label, const std::string& prefix,
            const Labels& labels = {}) const {
    constexpr double kLong = 2;  // seconds
    std::vector<std::string> texts;
    for (const MetricSample& sample : samples_) {
      const auto who = sample.labels.find(label);
      if (who == sample.labels.end() || !Has(sample, name, labels) || sample.value < kLong) continue;
      texts.push_back(absl::StrFormat("%s%s (%s)", prefix, who->second, Cell::Seconds(sample.value).text));
    }
    return absl::StrJoin(texts, ", ");
  }

  // The values of a label, of all samples that have a name and these labels, as they come.
  std::vector<std::string> Values(const std::string& name, const std::string& label,
                                  const Labels& labels = {}) const {
    std::vector<std::string> values;
    for (const MetricSample& sample : samples_) {
      const auto found = sample.labels.find(label);
      if (found != sample.labels.end() && Has(sample, name, labels)) values.push_back(found->second);
    }
    return values;
  }

 private:
  const std::vector<MetricSample>& samples_;
};

}  // namespace

absl::StatusOr<std::vector<MetricSample>> ParseMetrics(std::string_view text) {
  std::vector<MetricSample> samples;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.starts_with('#')) continue;
    if (!ParseLine(line, &samples.emplace_back())) {
      return InvalidArgument("line %d is no metric: '%s'", number,
                             absl::CHexEscape(std::string(line.substr(0, 80))));
    }
  }
  return samples;
}

MetricsTables MakeMetricsTables(const std::vector<std::pair<std::string, std::vector<MetricSample>>>& tasks) {
  MetricsTables tables = {.workers = Table({"TASK", "STEP", "STEPS", "SAMPLES", "COMPUTE", "PUSH", "WAIT",
                                            "PULL", "SENT", "RECEIVED", "MEMORY", "WAITS FOR"}),
                          .shards = Table({"TASK", "SHARD", "ROLE", "STEP", "HELD", "QUEUED",
                                           "CHECKPOINT AGE", "SENT", "RECEIVED", "MEMORY", "WAITS FOR"}),
                          .pushes = Table({"TASK", "SHARD", "WORKER", "RECEIVED", "APPLIED", "STALE",
                                           "DUPLICATE", "REJECTED", "STALENESS"})};
  for (const auto& [task, all] : tasks) {
    const Samples samples(all);
    const auto mean = [&samples = samples](const std::string& phase) {
      return samples.MeanSeconds("muster_worker_step_seconds", {{"phase", phase}});
    };
    if (samples.Find("muster_worker_step")) {
      tables.workers.Add({task, samples.Number("muster_worker_step"),
                          samples.Number("muster_worker_steps_total"),
                          samples.Number("muster_worker_samples_total"), mean("compute"), mean("push"),
                          mean("wait"), mean("pull"), samples.Bytes("muster_worker_sent_bytes_total"),
                          samples.Bytes("muster_worker_received_bytes_total"),
                          samples.Bytes("process_resident_memory_bytes"),
                          samples.Long("muster_worker_waiting_seconds", "shard", "ps:")});
    }
    for (const std::string& shard : samples.Values("muster_ps_step", "shard")) {
      const Labels label = {{"shard", shard}};
      const bool is_primary = samples.Find("muster_ps_primary", label) == 1;
      tables.shards.Add(
          {task, shard, is_primary ? "primary" : "backup", samples.Number("muster_ps_step", label),
           samples.Number("muster_ps_held_pushes", label), samples.Number("muster_ps_queued_pushes", label),
           samples.Seconds("muster_ps_checkpoint_age_seconds", label),
           samples.Bytes("muster_ps_sent_bytes_total"), samples.Bytes("muster_ps_received_bytes_total"),
           samples.Bytes("process_resident_memory_bytes"),
           samples.Long("muster_ps_awaited_seconds", "worker", "", label)});
      constexpr char kReceived[] = "muster_ps_pushes_received_total";
      for (const std::string& worker : samples.Values(kReceived, "worker", label)) {
        const Labels both = {{"shard", shard}, {"worker", worker}};
        if (!is_primary && samples.Find(kReceived, both) == 0) continue;
        const auto count = [&samples = samples, both](const std::string& outcome) {
          Labels labels = both;
          labels["outcome"] = outcome;
          return samples.Number("muster_ps_pushes_total", labels);
        };
        tables.pushes.Add({task, shard, worker, samples.Number(kReceived, both), count("applied"),
                           count("stale"), count("duplicate"), count("rejected"),
                           samples.Buckets("muster_ps_push_staleness_steps", both)});
      }
    }
  }
  return tables;
}

}  // namespace muster
