#include "launcher/bench/results_table.h"

#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "launcher/bench/results_view.h"

namespace muster::bench {
namespace {

using TableCell = muster::Cell;

TableCell Number(double value, std::string text) {
  TableCell cell(std::move(text));
  cell.value = value;
  return cell;
}

TableCell Text(const std::string& text) { return text.empty() ? TableCell() : TableCell(OneLine(text)); }

// Nothing where it is not known.
TableCell Positive(double value, const std::function<std::string(double)>& text) {
  return std::isfinite(value) && value > 0 ? Number(value, text(value)) : TableCell();
}

TableCell Percent(std::optional<double> fraction) {
  return fraction ? Number(*fraction, PercentText(*fraction)) : TableCell();
}

TableCell SignedPercent(std::optional<double> fraction) {
  if (!fraction) return {};
  const std::string text = PercentText(*fraction);
  return Number(*fraction, (*fraction > 0 && text != "0 %" ? "+" : "") + text);
}

TableCell Rate(std::optional<double> bytes_per_second) {
  return bytes_per_second && std::isfinite(*bytes_per_second)
             ? Number(*bytes_per_second, RateText(*bytes_per_second))
             : TableCell();
}

// Of the host of which it is the most.
std::optional<double> Most(const Measurement& measurement,
                           const std::function<std::optional<double>(const HostUse&)>& of) {
  std::optional<double> most;
  for (const HostUse& host : measurement.hosts) {
    const std::optional<double> value = of(host);
    if (value && *value > most.value_or(-1)) most = value;
  }
  return most;
}

std::optional<double> Processors(const HostUse& host) { return host.busy_processors; }

// In the busier direction.
std::optional<double> BusierDirection(const HostUse& host) {
  return host.sent_bytes_per_second > host.received_bytes_per_second ? host.sent_bytes_per_second
                                                                     : host.received_bytes_per_second;
}

TableCell Step(const Measurement& of) { return Positive(of.median_step_seconds(), SecondsText); }

TableCell SamplesPerSecond(const Measurement& of) { return Positive(of.samples_per_second, AmountText); }

TableCell Bound(const Measurement& of) { return Positive(of.bound_step_seconds, SecondsText); }

// It would be all of it by construction.
TableCell OfBound(const Measurement& of) {
  TableCell cell = Percent(BoundFraction(of));
  if (GaveTheRate(of)) cell.text = "gave the rate";
  return cell;
}

TableCell Predicted(const Measurement& of) {
  return Positive(of.predicted_step_seconds.value_or(0), SecondsText);
}

// By so little, where it was fitted, since it was, and not because the simulator is good.
TableCell OffBy(const Measurement& of) {
  TableCell cell = SignedPercent(PredictionError(of));
  if (of.is_fitted && !cell.text.empty()) cell.text += " (fitted)";
  return cell;
}

// In JSON how far the ends are apart.
TableCell Range(const Measurement& measurement) {
  const auto range = StepRange(measurement);
  if (!range) return {};
  return Number(range->second - range->first,
                SecondsText(range->first) + " to " + SecondsText(range->second));
}

TableCell ServersCell(const Measurement& of) {
  return UsesServers(of.cell.strategy) ? TableCell(int64_t{of.cell.servers}) : TableCell();
}

TableCell LinkCell(const Measurement& of) {
  return Number(of.cell.link_bytes_per_second, LinkText(of.cell.link_bytes_per_second));
}

std::string NameOf(const Measurement& measurement) {
  return CompetitorName(measurement.cell) + ", " + WorkersText(measurement.cell.workers);
}

// Why it has no numbers.
std::string Failure(const Measurement& measurement) {
  return measurement.error.empty() ? "no numbers" : OneLine(measurement.error);
}

// What failed beside what has numbers.
std::string OtherFailures(const Measurement& measurement) {
  std::vector<std::string> parts;
  if (measurement.failures > 0) {
    parts.push_back(absl::StrFormat("%d of its jobs failed: %s", measurement.failures, measurement.failure));
  }
  const std::string target = kToTarget + measurement.target_error;
  if (!measurement.target_error.empty() && measurement.failure != target) parts.push_back(target);
  return OneLine(absl::StrJoin(parts, "; "));
}

struct Column {
  const char* name;
  std::function<TableCell(const Measurement&)> cell;
  bool needs_numbers = true;  // empty for what failed
};

std::vector<Column> CellColumns() {
  return {
      {"MODEL", [](const Measurement& of) { return Text(of.cell.model); }, false},
      {"LINK", LinkCell, false},
      {"STRATEGY", [](const Measurement& of) { return TableCell(StrategyName(of.cell.strategy)); }, false},
      {"WORKERS", [](const Measurement& of) { return TableCell(int64_t{of.cell.workers}); }, false},
      {"K", ServersCell, false},
      {"SERVERS", [](const Measurement& of) { return Text(ServersPlace(of.cell)); }, false},
  };
}

std::vector<Column> NumberColumns() {
  return {
      {"STEP", Step},
      {"STEP RANGE", Range},
      {"SAMPLES/S", SamplesPerSecond},
      {"EFFICIENCY", [](const Measurement& of) { return Positive(of.scaling_efficiency, PercentText); }},
      {"SENT",
       [](const Measurement& of) {
         return Number(of.sent_bytes_per_step, BytesText(of.sent_bytes_per_step));
       }},
      {"RECEIVED",
       [](const Measurement& of) {
         return Number(of.received_bytes_per_step, BytesText(of.received_bytes_per_step));
       }},
      {"CPU",
       [](const Measurement& of) {
         return Positive(of.cpu_seconds_per_step * StepsOfRound(of.cell), SecondsText);
       }},
      {"HOST CPU", [](const Measurement& of) { return Percent(Most(of, Processors)); }},
      {"HOST NET", [](const Measurement& of) { return Rate(Most(of, BusierDirection)); }},
      {"ALGBW", [](const Measurement& of) { return Rate(of.algorithm_bytes_per_second); }},
      {"BUSBW", [](const Measurement& of) { return Rate(of.bus_bytes_per_second); }},
      {"ACCURACY",
       [](const Measurement& of) {
         return of.test_accuracy ? Number(*of.test_accuracy, absl::StrFormat("%.4f", *of.test_accuracy))
                                 : TableCell();
       }},
      {"TO TARGET",
       [](const Measurement& of) { return Positive(of.seconds_to_target.value_or(0), SecondsText); }},
      {"BOUND", Bound},
      {"OF BOUND", OfBound},
      {"PREDICTED", Predicted},
      {"OFF BY", OffBy},
      {"ERROR", [](const Measurement& of) { return Text(HasNumbers(of) ? OtherFailures(of) : Failure(of)); },
       false},
  };
}

TableCell CellOf(const Column& column, const Measurement& measurement) {
  return HasNumbers(measurement) || !column.needs_numbers ? column.cell(measurement) : TableCell();
}

// Without those in which none of the measurements has anything.
std::vector<Column> Filled(std::vector<Column> columns, const std::vector<const Measurement*>& measurements) {
  std::erase_if(columns, [&](const Column& column) {
    return std::all_of(measurements.begin(), measurements.end(), [&](const Measurement* measurement) {
      return CellOf(column, *measurement).text.empty();
    });
  });
  return columns;
}

Table TableOf(const std::vector<Column>& columns, const std::vector<const Measurement*>& measurements) {
  std::vector<std::string> header;
  for (const Column& column : columns) header.push_back(column.name);
  Table table(std::move(header));
  for (const Measurement* measurement : measurements) {
    std::vector<TableCell> row;
    for (const Column& column : columns) row.push_back(CellOf(column, *measurement));
    table.Add(std::move(row));
  }
  return table;
}

std::vector<const Measurement*> AllOf(const Results& results) {
  std::vector<const Measurement*> all;
  for (const Measurement& measurement : results.measurements) all.push_back(&measurement);
  return all;
}

std::vector<const Measurement*> WithNumbers(std::vector<const Measurement*> measurements) {
  std::erase_if(measurements, [](const Measurement* measurement) { return !HasNumbers(*measurement); });
  return measurements;
}

// What matters most. With other columns it would be wider than 80 characters.
std::vector<Column> BriefColumns() {
  return {
      {"STRATEGY", [](const Measurement& of) { return TableCell(CompetitorName(of.cell)); }},
      {"WORKERS", [](const Measurement& of) { return TableCell(int64_t{of.cell.workers}); }},
      {"STEP", Step},
      {"SAMPLES/S", SamplesPerSecond},
      {"BOUND", Bound},
      {"PREDICTED", [](const Measurement& of) { return of.is_fitted ? TableCell("fitted") : Predicted(of); }},
  };
}

std::string BriefText(const Group& group) {
  std::string text = OneLine(GroupName(group)) + "\n";
  const std::vector<const Measurement*> measured = WithNumbers(group.measurements);
  if (!measured.empty()) text += TableOf(Filled(BriefColumns(), measured), measured).ToText();
  for (const Measurement* measurement : group.measurements) {
    const std::string failure =
        HasNumbers(*measurement) ? OtherFailures(*measurement) : Failure(*measurement);
    if (!failure.empty()) text += NameOf(*measurement) + ": " + failure + "\n";
  }
  return text;
}

size_t WidestLine(const std::string& text) {
  size_t widest = 0;
  for (const auto line : absl::StrSplit(text, '\n')) widest = std::max(widest, line.size());
  return widest;
}

}  // namespace

Table ResultsTable(const Results& results) {
  std::vector<Column> columns = CellColumns();
  for (Column& column : NumberColumns()) columns.push_back(std::move(column));
  const std::vector<const Measurement*> all = AllOf(results);
  return TableOf(Filled(std::move(columns), all), all);
}

std::string ResultsText(const Results& results, size_t width) {
  const std::string text = ResultsTable(results).ToText();
  if (width == 0 || WidestLine(text) <= width) return text;
  std::string brief;
  for (const Group& group : GroupsOf(results)) brief += (brief.empty() ? "" : "\n") + BriefText(group);
  return brief;
}

std::vector<TableSection> ResultsSections(const Results& results) {
  std::vector<Column> columns = Filled(NumberColumns(), WithNumbers(AllOf(results)));
  if (columns.empty()) columns.push_back(NumberColumns().back());  // the errors
  columns.insert(columns.begin(),
                 {"STRATEGY, WORKERS", [](const Measurement& of) { return Text(NameOf(of)); }, false});
  std::vector<TableSection> sections;
  for (const Group& group : GroupsOf(results)) {
    if (group.measurements.empty()) continue;
    TableSection section = {.title = GroupName(group), .table = TableOf(columns, group.measurements)};
    for (const Measurement* measurement : group.measurements) {
      section.failures.push_back(HasNumbers(*measurement) ? "" : Failure(*measurement));
    }
    sections.push_back(std::move(section));
  }
  return sections;
}

std::vector<TableSection> HostsSections(const Results& results) {
  std::vector<TableSection> sections;
  for (const Group& group : GroupsOf(results)) {
    TableSection section = {
        .title = GroupName(group),
        .table = Table({"STRATEGY, WORKERS", "HOST", "TASKS", "CPU", "SENT", "RECEIVED"})};
    for (const Measurement* measurement : WithNumbers(group.measurements)) {
      for (const HostUse& host : measurement->hosts) {
        section.table.Add({NameOf(*measurement), Text(host.host), Text(host.tasks),
                           Percent(host.busy_processors), Rate(host.sent_bytes_per_second),
                           Rate(host.received_bytes_per_second)});
        section.failures.emplace_back();
      }
    }
    if (!section.table.empty()) sections.push_back(std::move(section));
  }
  return sections;
}

}  // namespace muster::bench
