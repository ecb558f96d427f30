#include "launcher/bench/results_table.h"

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
  return Number(*fraction, (*fraction > 0 ? "+" : "") + PercentText(*fraction));
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

struct Column {
  const char* name;
  std::function<TableCell(const Measurement&)> cell;
  bool needs_numbers = true;  // empty for what failed
};

std::vector<Column> Columns() {
  return {
      {"MODEL", [](const Measurement& of) { return Text(of.cell.model); }, false},
      {"LINK",
       [](const Measurement& of) {
         return Number(of.cell.link_bytes_per_second, LinkText(of.cell.link_bytes_per_second));
       },
       false},
      {"STRATEGY", [](const Measurement& of) { return TableCell(StrategyName(of.cell.strategy)); }, false},
      {"WORKERS", [](const Measurement& of) { return TableCell(int64_t{of.cell.workers}); }, false},
      {"K",
       [](const Measurement& of) {
         return UsesServers(of.cell.strategy) ? TableCell(int64_t{of.cell.servers}) : TableCell();
       },
       false},
      {"SERVERS", [](const Measurement& of) { return Text(ServersPlace(of.cell)); }, false},
      {"STEP", [](const Measurement& of) { return Positive(of.median_step_seconds(), SecondsText); }},
      {"SAMPLES/S", [](const Measurement& of) { return Positive(of.samples_per_second, AmountText); }},
      {"EFFICIENCY", [](const Measurement& of) { return Positive(of.scaling_efficiency, PercentText); }},
      {"SENT",
       [](const Measurement& of) {
         return Number(of.sent_bytes_per_step, BytesText(of.sent_bytes_per_step));
       }},
      {"RECEIVED",
       [](const Measurement& of) {
         return Number(of.received_bytes_per_step, BytesText(of.received_bytes_per_step));
       }},
      {"CPU", [](const Measurement& of) { return Positive(of.cpu_seconds_per_step, SecondsText); }},
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
      {"BOUND", [](const Measurement& of) { return Positive(of.bound_step_seconds, SecondsText); }},
      {"OF BOUND", [](const Measurement& of) { return Percent(BoundFraction(of)); }},
      {"PREDICTED",
       [](const Measurement& of) { return Positive(of.predicted_step_seconds.value_or(0), SecondsText); },
       false},
      {"OFF BY", [](const Measurement& of) { return SignedPercent(PredictionError(of)); }},
      {"ERROR",
       [](const Measurement& of) {
         if (!of.error.empty()) return Text(of.error);
         if (!HasNumbers(of)) return TableCell("no numbers");
         return Text(of.target_error.empty() ? "" : "to target: " + of.target_error);
       },
       false},
  };
}

}  // namespace

Table ResultsTable(const Results& results) {
  std::vector<std::string> header;
  std::vector<std::vector<TableCell>> rows(results.measurements.size());
  for (const Column& column : Columns()) {
    std::vector<TableCell> cells;
    bool is_empty = !results.measurements.empty();
    for (const Measurement& measurement : results.measurements) {
      const bool is_shown = HasNumbers(measurement) || !column.needs_numbers;
      cells.push_back(is_shown ? column.cell(measurement) : TableCell());
      is_empty = is_empty && cells.back().text.empty();
    }
    if (is_empty) continue;
    header.push_back(column.name);
    for (size_t i = 0; i < cells.size(); ++i) rows[i].push_back(std::move(cells[i]));
  }
  Table table(std::move(header));
  for (auto& row : rows) table.Add(std::move(row));
  return table;
}

Table HostsTable(const Results& results) {
  Table table({"MODEL", "LINK", "STRATEGY", "WORKERS", "HOST", "TASKS", "CPU", "SENT", "RECEIVED"});
  for (const Measurement& measurement : results.measurements) {
    if (!HasNumbers(measurement)) continue;
    const Cell& cell = measurement.cell;
    for (const HostUse& host : measurement.hosts) {
      table.Add({Text(cell.model), Number(cell.link_bytes_per_second, LinkText(cell.link_bytes_per_second)),
                 CompetitorName(cell), int64_t{cell.workers}, Text(host.host), Text(host.tasks),
                 Percent(host.busy_processors), Rate(host.sent_bytes_per_second),
                 Rate(host.received_bytes_per_second)});
    }
  }
  return table;
}

}  // namespace muster::bench
