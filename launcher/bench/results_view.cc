#include "launcher/bench/results_view.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <cmath>

#include "launcher/table.h"

namespace muster::bench {
namespace {

// "1.2M" and "850k": what is left of `value` after the largest of the prefixes that it reaches.
std::string WithPrefix(double value, const std::vector<const char*>& prefixes) {
  size_t prefix = 0;
  while (value >= 999.5 && prefix + 1 < prefixes.size()) {
    value /= 1000;
    ++prefix;
  }
  if (value >= 999.5) return absl::StrFormat("%.3g%s", value, prefixes[prefix]);
  return absl::StrFormat(value < 9.95 ? "%.1f%s" : "%.0f%s", value, prefixes[prefix]);
}

std::string ThreeDigits(double value) {
  if (value < 9.995) return absl::StrFormat("%.2f", value);
  if (value < 99.95) return absl::StrFormat("%.1f", value);
  return absl::StrFormat(value < 1e6 ? "%.0f" : "%.3g", value);
}

bool IsPositive(double value) { return std::isfinite(value) && value > 0; }

// The item of `all` for which `is_it` holds; else `item`, appended.
template <typename Item, typename Predicate>
Item& FindOrAdd(std::vector<Item>* all, Item item, Predicate is_it) {
  const auto found = std::find_if(all->begin(), all->end(), is_it);
  return found != all->end() ? *found : all->emplace_back(std::move(item));
}

// Of a worker's step: "100 samples"; of several models "100 samples (mnist_mlp)" and "900 to 300 samples
// (wide_deep, by the number of workers)".
std::vector<std::string> BatchSizes(const Results& results) {
  struct Sizes {
    std::string model;
    double least = 0, most = 0;
  };
  std::vector<Sizes> of_models;
  for (const Measurement& measurement : results.measurements) {
    const double size = measurement.batch_size;
    if (!IsPositive(size)) continue;
    const std::string& model = measurement.cell.model;
    Sizes& sizes =
        FindOrAdd(&of_models, Sizes{model, size, size}, [&](const Sizes& of) { return of.model == model; });
    sizes.least = std::min(sizes.least, size);
    sizes.most = std::max(sizes.most, size);
  }
  struct Batch {
    double least, most;
    std::vector<std::string> models;
  };
  std::vector<Batch> batches;
  for (const Sizes& of : of_models) {
    FindOrAdd(&batches, Batch{of.least, of.most, {}}, [&](const Batch& batch) {
      return batch.least == of.least && batch.most == of.most;
    }).models.push_back(of.model);
  }
  std::vector<std::string> texts;
  for (const Batch& batch : batches) {
    std::vector<std::string> notes;
    if (batches.size() > 1) notes.push_back(ListText(batch.models));
    if (batch.least != batch.most) notes.push_back("by the number of workers");
    texts.push_back((batch.least != batch.most ? absl::StrFormat("%.0f to ", batch.most) : "") +
                    absl::StrFormat("%.0f %s", batch.least, batch.most == 1 ? "sample" : "samples") +
                    (notes.empty() ? "" : " (" + absl::StrJoin(notes, ", ") + ")"));
  }
  return texts;
}

}  // namespace

std::vector<Group> GroupsOf(const Results& results) {
  std::vector<Group> groups;
  const auto group_of = [&](const Cell& cell) -> Group& {
    const auto found = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
      return group.model == cell.model && group.link_bytes_per_second == cell.link_bytes_per_second;
    });
    if (found != groups.end()) return *found;
    return groups.emplace_back(
        Group{.model = cell.model, .link_bytes_per_second = cell.link_bytes_per_second});
  };
  for (const Measurement& measurement : results.measurements) {
    group_of(measurement.cell).measurements.push_back(&measurement);
  }
  for (const Curve& curve : results.curves) group_of(curve.cell).curves.push_back(&curve);
  return groups;
}

std::string GroupName(const Group& group) {
  return group.model + " over " + LinkText(group.link_bytes_per_second);
}

std::optional<double> LatencyOf(const Results& results, const Group& group) {
  for (const Link& link : results.links) {
    if (link.bytes_per_second == group.link_bytes_per_second) return link.latency_seconds;
  }
  return std::nullopt;
}

bool HasNumbers(const Measurement& measurement) {
  return measurement.error.empty() && IsPositive(measurement.samples_per_second) &&
         IsPositive(measurement.median_step_seconds());
}

double StepsOfRound(const Cell& cell) {
  if (cell.strategy == Strategy::kAsyncServers) return cell.workers;
  if (cell.strategy != Strategy::kBackupWorkers || cell.workers < 2) return 1;
  return cell.workers / (cell.workers - 1.0);
}

bool HasTables(const std::string& model) { return model.substr(0, model.find(':')) == "wide_deep"; }

bool GaveTheRate(const Measurement& measurement) {
  return measurement.is_fitted && measurement.bound_link_bytes_per_second && measurement.cell.workers > 1 &&
         measurement.cell.strategy == Strategy::kAllReduce;
}

std::optional<double> BoundFraction(const Measurement& measurement) {
  if (!HasNumbers(measurement) || !IsPositive(measurement.bound_step_seconds)) return std::nullopt;
  if (GaveTheRate(measurement)) return std::nullopt;
  return measurement.bound_step_seconds / measurement.median_step_seconds();
}

std::optional<double> PredictionError(const Measurement& measurement) {
  const double predicted = measurement.predicted_step_seconds.value_or(0);
  if (!HasNumbers(measurement) || !IsPositive(predicted)) return std::nullopt;
  return predicted / measurement.median_step_seconds() - 1;
}

std::optional<std::pair<double, double>> StepRange(const Measurement& measurement) {
  if (!HasNumbers(measurement) || measurement.step_seconds.size() < 2) return std::nullopt;
  const auto [least, most] =
      std::minmax_element(measurement.step_seconds.begin(), measurement.step_seconds.end());
  return std::pair(*least, *most);
}

std::string SettingsText(const Results& results) {
  const std::vector<std::string> sizes = BatchSizes(results);
  std::vector<std::string> parts;
  if (results.steps > 0) {
    parts.push_back(
        absl::StrFormat("%d %s of each worker", results.steps, results.steps == 1 ? "step" : "steps"));
  }
  if (!sizes.empty()) parts.push_back((results.steps > 0 ? "of " : "steps of ") + ListText(sizes));
  const std::string what = absl::StrJoin(parts, ", ");
  if (results.version.empty()) return what;
  return what + (what.empty() ? "" : "; ") + "muster " + results.version;
}

bool UsesServers(Strategy strategy) { return strategy != Strategy::kAllReduce; }

std::string ServersPlace(const Cell& cell) {
  if (!UsesServers(cell.strategy)) return "";
  return cell.servers_on_workers ? "on workers" : "own hosts";
}

std::string CompetitorName(const Cell& cell) {
  if (!UsesServers(cell.strategy)) return StrategyName(cell.strategy);
  return absl::StrFormat("%s (k = %d, %s)", StrategyName(cell.strategy), cell.servers, ServersPlace(cell));
}

std::string PlacelessName(const Cell& cell) {
  if (!UsesServers(cell.strategy)) return StrategyName(cell.strategy);
  return absl::StrFormat("%s (k = %d)", StrategyName(cell.strategy), cell.servers);
}

std::string WorkersText(int workers) {
  return absl::StrFormat(workers == 1 ? "%d worker" : "%d workers", workers);
}

std::string LinkText(double bytes_per_second) {
  if (!IsPositive(bytes_per_second)) return "links as they are";
  double bits = std::min(bytes_per_second, 1e300) * 8;
  const char* unit = "bit/s";
  for (const char* next : {"kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"}) {
    if (bits < 999.5) break;
    bits /= 1000;
    unit = next;
  }
  return absl::StrFormat("%.3g %s", bits, unit);
}

std::string AmountText(double amount) {
  if (!std::isfinite(amount)) return "unknown";
  if (amount < 99999.5) return ThreeDigits(amount);
  return WithPrefix(amount, {"", "k", "M", "G", "T"});
}

std::string PercentText(double fraction) {
  if (!std::isfinite(fraction)) return "unknown";
  const double percent = std::abs(fraction) * 100;
  if (percent < 0.05) return "0 %";  // rather than "-0.0 %"
  return absl::StrFormat(percent >= 9.95 ? (percent >= 1e6 ? "%.3g %%" : "%.0f %%") : "%.1f %%",
                         fraction * 100);
}

std::string BytesText(double bytes) {
  if (!std::isfinite(bytes)) return "unknown";
  return FormatBytes(static_cast<uint64_t>(std::clamp(bytes, 0.0, 1e18) + 0.5));
}

std::string RateText(double bytes_per_second) { return BytesText(bytes_per_second) + "/s"; }

std::string SecondsText(double seconds) {
  if (!std::isfinite(seconds)) return "unknown";
  if (seconds < 0.9995e-3) return ThreeDigits(seconds * 1e6) + " us";
  if (seconds < 0.9995) return ThreeDigits(seconds * 1e3) + " ms";
  return ThreeDigits(seconds) + " s";
}

std::string OneLine(std::string text) {
  for (char& character : text) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(character))) character = ' ';
  }
  return text;
}

std::string ListText(const std::vector<std::string>& items) {
  if (items.size() < 2) return absl::StrJoin(items, "");
  return absl::StrJoin(items.begin(), items.end() - 1, ", ") + " and " + items.back();
}

}  // namespace muster::bench
