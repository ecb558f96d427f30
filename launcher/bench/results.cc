#include "launcher/bench/results.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
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

// Takes the fields out of one object, and remembers in `status`, which all readers of a document share, the
// first that is not as it should be; what is read from there on means nothing.
class ObjectReader {
 public:
  // `place`: "", or "measurements[3]."
  ObjectReader(const Json& object, std::string place, absl::Status* status)
      : object_(object), place_(std::move(place)), status_(status) {}

  double Number(const char* name) {
    const Json* value = Find(name);
    return value != nullptr ? NonNegative(*value, name) : 0;
  }

  std::optional<double> NumberOrNull(const char* name) {
    const Json* value = Find(name);
    if (value == nullptr || value->is_null()) return std::nullopt;
    return NonNegative(*value, name);
  }

  std::vector<double> Numbers(const char* name) {
    std::vector<double> numbers;
    const Json* values = FindArray(name);
    for (size_t i = 0; values != nullptr && i < values->size(); ++i) {
      numbers.push_back(NonNegative((*values)[i], absl::StrFormat("%s[%d]", name, i)));
    }
    return numbers;
  }

  int Integer(const char* name, int least) {
    const Json* value = Find(name);
    if (value == nullptr) return least;
    if (!value->is_number_integer()) return Fail(name, "is not a whole number"), least;
    const auto number = value->get<double>();  // any integer, if not each exactly
    if (number < least || number > std::numeric_limits<int>::max()) {
      return Fail(name, absl::StrFormat("is %s, which is out of range", value->dump())), least;
    }
    return value->get<int>();
  }

  bool Bool(const char* name) {
    const Json* value = Find(name);
    if (value != nullptr && !value->is_boolean()) Fail(name, "is neither true nor false");
    return value != nullptr && value->is_boolean() && value->get<bool>();
  }

  std::string Text(const char* name) {
    const Json* value = Find(name);
    if (value != nullptr && !value->is_string()) Fail(name, "is not a string");
    return value != nullptr && value->is_string() ? value->get<std::string>() : "";
  }

  ObjectReader Object(const char* name) { return Inside(Find(name), name); }

  // Of an array of objects, `read` makes one value of each.
  template <typename Read>
  auto Objects(const char* name, Read read) {
    std::vector<decltype(read(std::declval<ObjectReader>()))> read_values;
    const Json* values = FindArray(name);
    for (size_t i = 0; values != nullptr && i < values->size(); ++i) {
      read_values.push_back(read(Inside(&(*values)[i], absl::StrFormat("%s[%d]", name, i))));
    }
    return read_values;
  }

  void Fail(const std::string& name, const std::string& how) {
    if (status_->ok()) *status_ = InvalidArgument("bench results: %s%s %s", place_, name, how);
  }

 private:
  const Json* Find(const char* name) {
    const auto found = object_.find(name);
    if (found != object_.end()) return &*found;
    Fail(name, "is missing");
    return nullptr;
  }

  const Json* FindArray(const char* name) {
    const Json* value = Find(name);
    if (value == nullptr || value->is_array()) return value;
    Fail(name, "is not an array");
    return nullptr;
  }

  ObjectReader Inside(const Json* value, const std::string& name) {
    static const Json kEmpty = Json::object();
    const bool is_object = value != nullptr && value->is_object();
    if (value != nullptr && !is_object) Fail(name, "is not an object");
    return {is_object ? *value : kEmpty, place_ + name + ".", status_};
  }

  double NonNegative(const Json& value, const std::string& name) {
    if (!value.is_number()) return Fail(name, "is not a number"), 0;
    const auto number = value.get<double>();
    if (number < 0) Fail(name, absl::StrFormat("is %s, which is negative", value.dump()));
    return number;
  }

  const Json& object_;
  const std::string place_;
  absl::Status* const status_;
};

Cell ReadCell(ObjectReader object) {
  Cell cell;
  const auto strategy = ParseStrategy(object.Text("strategy"));
  if (strategy.ok()) {
    cell.strategy = *strategy;
  } else {
    object.Fail("strategy", "is not one: " + std::string(strategy.status().message()));
  }
  cell.model = object.Text("model");
  cell.workers = object.Integer("workers", 1);
  cell.servers = object.Integer("servers", 0);
  cell.servers_on_workers = object.Bool("servers_on_workers");
  cell.link_bytes_per_second = object.Number("link_bytes_per_second");
  return cell;
}

HostUse ReadHost(ObjectReader object) {
  return {.host = object.Text("host"),
          .tasks = object.Text("tasks"),
          .busy_processors = object.Number("busy_processors"),
          .sent_bytes_per_second = object.NumberOrNull("sent_bytes_per_second"),
          .received_bytes_per_second = object.NumberOrNull("received_bytes_per_second")};
}

Measurement ReadMeasurement(ObjectReader object) {
  return {.cell = ReadCell(object.Object("cell")),
          .error = object.Text("error"),
          .failures = object.Integer("failures", 0),
          .failure = object.Text("failure"),
          .step_seconds = object.Numbers("step_seconds"),
          .samples_per_second = object.Number("samples_per_second"),
          .batch_size = object.Number("batch_size"),
          .scaling_efficiency = object.Number("scaling_efficiency"),
          .sent_bytes_per_step = object.Number("sent_bytes_per_step"),
          .received_bytes_per_step = object.Number("received_bytes_per_step"),
          .cpu_seconds_per_step = object.Number("cpu_seconds_per_step"),
          .hosts = object.Objects("hosts", ReadHost),
          .communication_seconds = object.NumberOrNull("communication_seconds"),
          .algorithm_bytes_per_second = object.NumberOrNull("algorithm_bytes_per_second"),
          .bus_bytes_per_second = object.NumberOrNull("bus_bytes_per_second"),
          .test_accuracy = object.NumberOrNull("test_accuracy"),
          .seconds_to_target = object.NumberOrNull("seconds_to_target"),
          .target_error = object.Text("target_error"),
          .bound_step_seconds = object.Number("bound_step_seconds"),
          .bound_link_bytes_per_second = object.NumberOrNull("bound_link_bytes_per_second"),
          .predicted_step_seconds = object.NumberOrNull("predicted_step_seconds"),
          .is_fitted = object.Bool("is_fitted")};
}

Curve ReadCurve(ObjectReader object) {
  return {.cell = ReadCell(object.Object("cell")), .points = object.Objects("points", [](ObjectReader point) {
            return Curve::Point{.workers = point.Integer("workers", 1),
                                .samples_per_second = point.Number("samples_per_second")};
          })};
}

Link ReadLink(ObjectReader object) {
  return {.bytes_per_second = object.Number("bytes_per_second"),
          .latency_seconds = object.NumberOrNull("latency_seconds")};
}

Crossing ReadCrossing(ObjectReader object) {
  return {.slower = ReadCell(object.Object("slower")), .faster = ReadCell(object.Object("faster"))};
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
               {"steps", results.steps},
               {"compute_seconds_per_step", results.compute_seconds_per_step},
               {"target_accuracy", OrNull(results.target_accuracy)},
               {"links", Json::array()},
               {"measurements", Json::array()},
               {"curves", Json::array()},
               {"crossings", Json::array()},
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
  for (const Crossing& crossing : results.crossings) {
    json["crossings"].push_back(
        {{"slower", CellJson(crossing.slower)}, {"faster", CellJson(crossing.faster)}});
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<Results> FromJson(const std::string& text) {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return InvalidArgument("bench results: not a JSON object, or cut off");
  absl::Status status;
  ObjectReader object(json, "", &status);
  const int version = object.Integer("schema_version", 0);
  if (status.ok() && version != Results::kSchemaVersion) {
    return InvalidArgument("bench results: schema_version is %d, and this muster reads %d", version,
                           Results::kSchemaVersion);
  }
  Results results = {.created = object.Text("created"),
                     .where = object.Text("where"),
                     .command = object.Text("command"),
                     .version = object.Text("version"),
                     .steps = object.Integer("steps", 0),
                     .compute_seconds_per_step = object.Number("compute_seconds_per_step"),
                     .target_accuracy = object.NumberOrNull("target_accuracy"),
                     .links = object.Objects("links", ReadLink),
                     .measurements = object.Objects("measurements", ReadMeasurement),
                     .curves = object.Objects("curves", ReadCurve),
                     .crossings = object.Objects("crossings", ReadCrossing),
                     .median_prediction_error = object.NumberOrNull("median_prediction_error"),
                     .noise = object.NumberOrNull("noise")};
  MUSTER_RETURN_IF_ERROR(status);
  return results;
}

}  // namespace muster::bench
