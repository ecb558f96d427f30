#include "launcher/bench/report_charts.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace muster::bench {
namespace {

// Of the same strategy in the same place.
struct Family {
  std::vector<const Measurement*> measurements;
  std::vector<const Curve*> curves;
  bool has_choice = false;  // of servers, at one number of workers
};

std::map<std::pair<Strategy, bool>, Family> FamiliesOf(const Group& group) {
  std::map<std::pair<Strategy, bool>, Family> families;
  for (const Measurement* measurement : group.measurements) {
    const Cell& cell = measurement->cell;
    Family& family = families[{cell.strategy, cell.servers_on_workers}];
    family.has_choice =
        family.has_choice ||
        std::any_of(family.measurements.begin(), family.measurements.end(), [&](const Measurement* other) {
          return other->cell.workers == cell.workers && other->cell.servers != cell.servers;
        });
    family.measurements.push_back(measurement);
  }
  for (const Curve* curve : group.curves) {
    families[{curve->cell.strategy, curve->cell.servers_on_workers}].curves.push_back(curve);
  }
  return families;
}

std::string NameOf(const std::vector<const Measurement*>& measured) {
  const Cell& cell = measured.back()->cell;
  const auto all = [&](auto predicate) { return std::all_of(measured.begin(), measured.end(), predicate); };
  if (all([&](const Measurement* other) { return other->cell.servers == cell.servers; }))
    return CompetitorName(cell);
  if (all([](const Measurement* other) { return other->cell.servers == other->cell.workers; })) {
    return absl::StrFormat("%s (k = workers, %s)", StrategyName(cell.strategy), ServersPlace(cell));
  }
  std::set<int> servers;
  for (const Measurement* other : measured) servers.insert(other->cell.servers);
  return absl::StrFormat("%s (k = %d to %d, %s)", StrategyName(cell.strategy), *servers.begin(),
                         *servers.rbegin(), ServersPlace(cell));
}

std::vector<Line> LinesOf(const Family& family) {
  std::map<int, Line> by_servers;  // with one key where there is no choice
  for (const Measurement* measurement : family.measurements) {
    if (!HasNumbers(*measurement)) continue;
    by_servers[family.has_choice ? measurement->cell.servers : 0].measured.push_back(measurement);
  }
  std::vector<Line> lines;
  for (auto& [servers, line] : by_servers) {
    std::stable_sort(line.measured.begin(), line.measured.end(),
                     [](const auto* a, const auto* b) { return a->cell.workers < b->cell.workers; });
    line.name = NameOf(line.measured);
    lines.push_back(std::move(line));
  }
  for (const Curve* curve : family.curves) {
    // It goes on from the line that has its servers throughout, and is one of its own if there is none.
    const auto has_servers = [&](const Measurement* measurement) {
      return measurement->cell.servers == curve->cell.servers;
    };
    const auto line = std::find_if(lines.begin(), lines.end(), [&](const Line& line) {
      return line.curve == nullptr && !line.measured.empty() &&
             std::all_of(line.measured.begin(), line.measured.end(), has_servers);
    });
    if (line != lines.end()) {
      line->curve = curve;
    } else {
      lines.push_back({.name = CompetitorName(curve->cell), .curve = curve});
    }
  }
  return lines;
}

std::string Hint(const Cell& cell, int workers, double samples_per_second) {
  return absl::StrFormat("%s, %s: %s samples/s", CompetitorName(cell), WorkersText(workers),
                         AmountText(samples_per_second));
}

ChartLine MeasuredLine(const Line& line) {
  ChartLine chart_line = {.kind = ChartLine::Kind::kMeasured, .look = line.look};
  for (const Measurement* measurement : line.measured) {
    chart_line.points.push_back(
        {.x = static_cast<double>(measurement->cell.workers),
         .y = measurement->samples_per_second,
         .hint = Hint(measurement->cell, measurement->cell.workers, measurement->samples_per_second)});
  }
  return chart_line;
}

ChartLine BoundLine(const Line& line) {
  ChartLine chart_line = {.kind = ChartLine::Kind::kBound, .look = line.look};
  for (const Measurement* measurement : line.measured) {
    const std::optional<double> fraction = BoundFraction(*measurement);
    if (!fraction) continue;
    chart_line.points.push_back({.x = static_cast<double>(measurement->cell.workers),
                                 .y = measurement->samples_per_second / *fraction});
  }
  return chart_line;
}

ChartLine SimulatedLine(const Line& line) {
  ChartLine chart_line = {.kind = ChartLine::Kind::kSimulated, .look = line.look};
  for (const Curve::Point& point : line.curve->points) {
    chart_line.points.push_back({.x = static_cast<double>(point.workers), .y = point.samples_per_second});
  }
  if (!chart_line.points.empty()) {  // its marker
    const Curve::Point& last = line.curve->points.back();
    chart_line.points.back().hint =
        Hint(line.curve->cell, last.workers, last.samples_per_second) + ", simulated";
  }
  return chart_line;
}

// The measurement by which a line is compared in bars; nullptr: it has none with so many workers.
const Measurement* At(const Line& line, int workers) {
  const auto found =
      std::find_if(line.measured.begin(), line.measured.end(),
                   [&](const Measurement* measurement) { return measurement->cell.workers == workers; });
  return found != line.measured.end() ? *found : nullptr;
}

Bar RoundTimeBar(const Measurement& measurement) {
  const double steps = StepsOfRound(measurement.cell);
  const double seconds = steps * measurement.median_step_seconds();
  const double bound_seconds = BoundFraction(measurement) ? steps * measurement.bound_step_seconds : 0;
  Bar bar = {
      .label = CompetitorName(measurement.cell),
      .value = SecondsText(seconds) + (bound_seconds > 0 ? ", bound " + SecondsText(bound_seconds) : ""),
      .first = std::min(bound_seconds, seconds),
      .second = std::max(seconds - bound_seconds, 0.0),
      .missing = std::max(bound_seconds - seconds, 0.0),
      .mark = measurement.is_fitted ? 0 : steps * measurement.predicted_step_seconds.value_or(0)};
  if (const auto range = StepRange(measurement)) {
    std::tie(bar.least, bar.most) = std::pair(steps * range->first, steps * range->second);
  }
  return bar;
}

}  // namespace

std::vector<Line> LinesOf(const Group& group) {
  std::vector<Line> all;
  std::map<Strategy, int> variants;
  for (const auto& [key, family] : FamiliesOf(group)) {
    for (Line& line : LinesOf(family)) {
      line.look = {.index = static_cast<int>(key.first), .variant = variants[key.first]++};
      all.push_back(std::move(line));
    }
  }
  return all;
}

int MostWorkers(const std::vector<Line>& lines) {
  int most = 0;
  for (const Line& line : lines) {
    if (!line.measured.empty()) most = std::max(most, line.measured.back()->cell.workers);
  }
  return most;
}

std::vector<int> ServersOfCurves(const std::vector<Line>& lines) {
  std::set<int> servers;
  for (const Line& line : lines) {
    if (line.curve != nullptr && UsesServers(line.curve->cell.strategy)) {
      servers.insert(line.curve->cell.servers);
    }
  }
  return {servers.begin(), servers.end()};
}

std::vector<Line> LinesWith(const std::vector<Line>& lines, int servers) {
  const auto is_in = [&](const Cell& cell) { return !UsesServers(cell.strategy) || cell.servers == servers; };
  std::vector<Line> some;
  for (Line line : lines) {
    std::erase_if(line.measured, [&](const Measurement* measurement) { return !is_in(measurement->cell); });
    if (line.curve != nullptr && !is_in(line.curve->cell)) line.curve = nullptr;
    if (line.curve != nullptr || !line.measured.empty()) some.push_back(std::move(line));
  }
  return some;
}

LineChart MeasuredChart(const Group& group, const std::vector<Line>& lines) {
  LineChart chart = {.description = "Measured samples per second over workers: " + GroupName(group),
                     .x_title = "workers",
                     .y_title = "samples/s"};
  for (const Line& line : lines) chart.lines.push_back(BoundLine(line));
  for (const Line& line : lines) chart.lines.push_back(MeasuredLine(line));
  return chart;
}

LineChart SimulatedChart(const Group& group, const std::vector<Line>& lines) {
  LineChart chart = {
      .description = "Measured and predicted samples per second over workers: " + GroupName(group),
      .x_title = "workers",
      .y_title = "samples/s",
      .axes = LineChart::Axes::kLogLog};
  for (const Line& line : lines) {
    if (line.curve != nullptr) chart.lines.push_back(SimulatedLine(line));
  }
  if (chart.lines.empty()) return chart;
  for (const Line& line : lines) chart.lines.push_back(MeasuredLine(line));
  return chart;
}

BarChart BytesChart(const Group& group, const std::vector<Line>& lines) {
  BarChart chart = {.description = "Bytes per step: " + GroupName(group), .unit = Unit::kBytes};
  double all_bytes = 0;
  for (const Line& line : lines) {
    const Measurement* const measurement = At(line, MostWorkers(lines));
    if (measurement == nullptr) continue;
    chart.bars.push_back({.label = CompetitorName(measurement->cell),
                          .value = BytesText(measurement->sent_bytes_per_step) + " + " +
                                   BytesText(measurement->received_bytes_per_step),
                          .look = line.look,
                          .first = measurement->sent_bytes_per_step,
                          .second = measurement->received_bytes_per_step});
    all_bytes += measurement->sent_bytes_per_step + measurement->received_bytes_per_step;
  }
  if (all_bytes == 0) chart.bars.clear();
  return chart;
}

BarChart RoundTimeChart(const Group& group, const std::vector<Line>& lines) {
  BarChart chart = {.description = "Time of a gradient of each worker against its bound: " + GroupName(group),
                    .unit = Unit::kSeconds};
  bool has_bounds = false;
  for (const Line& line : lines) {
    const Measurement* const measurement = At(line, MostWorkers(lines));
    if (measurement == nullptr) continue;
    Bar bar = RoundTimeBar(*measurement);
    bar.look = line.look;
    has_bounds = has_bounds || bar.first > 0;
    chart.bars.push_back(std::move(bar));
  }
  for (Bar& bar : chart.bars) {
    if (!has_bounds) std::swap(bar.first, bar.second);
  }
  return chart;
}

}  // namespace muster::bench
