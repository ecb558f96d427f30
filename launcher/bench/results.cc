#include "launcher/bench/results.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

namespace muster::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::pair<Strategy, const char*>, 5> kStrategyNames = {{
    {Strategy::kAsyncServers, "ps_async"},
    {Strategy::kSyncServers, "ps_sync"},
    {Strategy::kBackupWorkers, "ps_backup"},
    {Strategy::kAllReduce, "allreduce"},
    {Strategy::kHybrid, "hybrid"},
}};

Json OrNull(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

Json CellJson(const Cell& cell) {
  return {{"strategy", StrategyName(cell.strategy)},
          {"model", cell.model},
          {"workers", cell.workers},
          {"servers", cell.servers},
          {"servers_on_workers", cell.servers_on_workers},
          {"link_bytes_per_second", cell.link_bytes_per_second}};
}

Json HostJson(const HostUse& host) {
  return {{"host", host.host},
          {"tasks", host.tasks},
          {"busy_processors", host.busy_processors},
          {"sent_bytes_per_second", OrNull(host.sent_bytes_per_second)},
          {"received_bytes_per_second", OrNull(host.received_bytes_per_second)}};
}

Json MeasurementJson(const Measurement& measurement) {
  Json hosts = Json::array();
  for (const HostUse& host : measurement.hosts) hosts.push_back(HostJson(host));
  return {{"cell", CellJson(measurement.cell)},
          {"error", measurement.error},
          {"failures", measurement.failures},
          {"failure", measurement.failure},
          {"step_seconds", measurement.step_seconds},
          {"samples_per_second", measurement.samples_per_second},
          {"batch_size", measurement.batch_size},
          {"scaling_efficiency", measurement.scaling_efficiency},
          {"sent_bytes_per_step", measurement.sent_bytes_per_step},
          {"received_bytes_per_step", measurement.received_bytes_per_step},
          {"cpu_seconds_per_step", measurement.cpu_seconds_per_step},
          {"hosts", std::move(hosts)},
          {"communication_seconds", OrNull(measurement.communication_seconds)},
          {"algorithm_bytes_per_second", OrNull(measurement.algorithm_bytes_per_second)},
          {"bus_bytes_per_second", OrNull(measurement.bus_bytes_per_second)},
          {"test_accuracy", OrNull(measurement.test_accuracy)},
          {"seconds_to_target", OrNull(measurement.seconds_to_target)},
          {"target_gap_seconds", measurement.target_gap_seconds},
          {"target_error", measurement.target_error},
          {"bound_step_seconds", measurement.bound_step_seconds},
          {"bound_link_bytes_per_second", OrNull(measurement.bound_link_bytes_per_second)},
          {"predicted_step_seconds", OrNull(measurement.predicted_step_seconds)},
          {"is_fitted", measurement.is_fitted}};
}

Json CurveJson(const Curve& curve) {
  Json points = Json::array();
  for (const Curve::Point& point : curve.points) {
    points.push_back({{"workers", point.workers}, {"samples_per_second", point.samples_per_second}});
  }
  return {{"cell", CellJson(curve.cell)}, {"points", std::move(points)}};
}

}  // namespace

std::string StrategyName(Strategy strategy) {
  for (const auto& [known, name] : kStrategyNames) {
    if (known == strategy) return name;
  }
  MUSTER_CHECK(false, "a strategy without a name");
}

absl::StatusOr<Strategy> ParseStrategy(const std::string& name) {
  std::string names;
  for (const auto& [strategy, known] : kStrategyNames) {
    if (known == name) return strategy;
    names += names.empty() ? known : std::string(", ") + known;
  }
  return InvalidArgument("there is no strategy '%s', only %s", name, names);
}

double MedianOf(std::vector<double> values) {
  MUSTER_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : values[middle - 1] / 2 + values[middle] / 2;
}

double Measurement::median_step_seconds() const {
  if (step_seconds.empty()) return 0;
  for (const double seconds : step_seconds) {
    if (std::isnan(seconds)) return seconds;  // it has no place in an order
  }
  return MedianOf(step_seconds);
}

std::string ToJson(const Results& results) {
  Json json = {{"schema_version", Results::kSchemaVersion},
               {"created", results.created},
               {"where", results.where},
               {"command", results.command},
               {"version", results.version},
               {"is_complete", results.unfinished.empty()},
               {"unfinished", results.unfinished},
               {"steps", results.steps},
               {"compute_seconds_per_step", OrNull(results.compute_seconds_per_step)},
               {"target_accuracy", OrNull(results.target_accuracy)},
               {"links", Json::array()},
               {"measurements", Json::array()},
               {"curves", Json::array()},
               {"unpredicted", Json::array()},
               {"median_prediction_error", OrNull(results.median_prediction_error)},
               {"noise", OrNull(results.noise)}};
  for (const Link& link : results.links) {
    json["links"].push_back(
        {{"bytes_per_second", link.bytes_per_second}, {"latency_seconds", OrNull(link.latency_seconds)}});
  }
  for (const Measurement& measurement : results.measurements) {
    json["measurements"].push_back(MeasurementJson(measurement));
  }
  for (const Curve& curve : results.curves) json["curves"].push_back(CurveJson(curve));
  for (const Unpredicted& of : results.unpredicted) {
    json["unpredicted"].push_back(
        {{"model", of.model}, {"link_bytes_per_second", of.link_bytes_per_second}, {"why", of.why}});
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace muster::bench
