#include "launcher/comparison.h"

#include <absl/strings/str_join.h>

#include <algorithm>
#include <span>
#include <utility>

#include "launcher/bench/results_view.h"
#include "launcher/table.h"

namespace muster {
namespace {

using Json = nlohmann::json;

constexpr int kResultVersion = 1;  // trainer/result_record.h

struct Field {
  const char* name;
  const char* label;
  std::string (*text)(const Json& value);  // of none that is null
};

std::string Plain(const Json& value) {
  return bench::OneLine(value.is_string() ? value.get<std::string>() : value.dump());
}
std::string Seconds(const Json& value) { return bench::SecondsText(value); }
std::string Bytes(const Json& value) { return bench::BytesText(value); }
std::string Rate(const Json& value) { return bench::AmountText(value); }
std::string Fraction(const Json& value) { return absl::StrFormat("%.4f", value.get<double>()); }
std::string Loss(const Json& value) { return absl::StrFormat("%.4g", value.get<double>()); }
std::string Hash(const Json& value) { return Plain(value).substr(0, 12); }

constexpr Field kSettings[] = {
    {"model", "model", Plain},
    {"variant", "variant", Plain},
    {"parameter_bytes", "model size", Bytes},
    {"strategy", "strategy", Plain},
    {"update_mode", "update mode", Plain},
    {"workers", "workers", Plain},
    {"ps", "ps", Plain},
    {"batch_size", "batch size", Plain},
    {"steps", "steps", Plain},
    {"seed", "seed", Plain},
    {"device", "device", Plain},
    {"instruction_set", "instruction set", Plain},
    {"threads", "threads", Plain},
    {"platform", "platform", Plain},
    {"hosts", "hosts", Plain},
    {"program_sha256", "program", Hash},
};

constexpr Field kMeasures[] = {
    {"test_accuracy", "test accuracy", Fraction},
    {"test_auc", "test AUC", Fraction},
    {"test_loss", "test loss", Loss},
    {"train_loss", "train loss", Loss},
    {"seconds_to_first_step", "to first step", Seconds},
    {"seconds_training", "training", Seconds},
    {"steps_per_second", "steps/s", Rate},
    {"samples_per_second", "samples/s", Rate},
    {"samples", "samples", Plain},
    {"chief_steps", "chief's steps", Plain},
    {"bytes_pushed", "chief sent", Bytes},
    {"bytes_pulled", "chief received", Bytes},
    {"pushes.received", "pushes received", Plain},
    {"pushes.applied", "pushes applied", Plain},
    {"pushes.stale", "pushes stale", Plain},
    {"pushes.duplicate", "pushes duplicate", Plain},
    {"pushes.rejected", "pushes rejected", Plain},
};

// The same ones are the same bits.
constexpr Field kParameters = {"parameters_crc32c", "parameters CRC32C", Plain};

// Null: it has none. Of a list the length: hosts have other names on each platform.
Json ValueOf(const Json& record, std::string_view field) {
  const size_t dot = field.find('.');
  const auto found = record.find(std::string(field.substr(0, dot)));
  if (found == record.end()) return nullptr;
  if (found->is_array()) return found->size();
  if (dot == std::string_view::npos) return *found;
  return found->is_object() ? ValueOf(*found, field.substr(dot + 1)) : nullptr;
}

absl::Status CheckNumber(const Json& record, const char* field) {
  const Json value = ValueOf(record, field);
  if (value.is_number() || value.is_null()) return absl::OkStatus();
  return InvalidArgument("%s is %s, and no number", field, value.dump());
}

std::vector<Json> ValuesOf(std::span<const Run> runs, const Field& field) {
  std::vector<Json> values;
  for (const Run& run : runs) values.push_back(ValueOf(run.result, field.name));
  return values;
}

bool AllAre(const std::vector<Json>& values, const Json& value) {
  return std::all_of(values.begin(), values.end(), [&](const Json& one) { return one == value; });
}

std::vector<std::optional<double>> RatiosOf(const std::vector<Json>& values) {
  std::vector<std::optional<double>> ratios;
  const bool has_base = values[0].is_number() && values[0].get<double>() != 0;
  for (const Json& value : values) {
    ratios.push_back(has_base && value.is_number()
                         ? std::optional(value.get<double>() / values[0].get<double>())
                         : std::nullopt);
  }
  return ratios;
}

const Field& FieldOf(std::string_view name) {
  for (const std::span<const Field> fields :
       {std::span<const Field>(kSettings), std::span<const Field>(kMeasures)}) {
    for (const Field& field : fields) {
      if (field.name == name) return field;
    }
  }
  MUSTER_CHECK(name == kParameters.name);
  return kParameters;
}

std::string TextOf(const Field& field, const Json& value) {
  return value.is_null() ? "-" : field.text(value);
}

// "0.497", "1.002", "12.5", "0.0021"
std::string RatioText(double ratio) {
  return absl::StrFormat(ratio < 0.0995 ? "%.2g" : ratio < 9.995 ? "%.3f" : "%.3g", ratio);
}

std::string RatioText(const Comparison::Measure& measure, size_t run) {
  if (measure.ratios[run]) return RatioText(*measure.ratios[run]);
  if (!measure.values[run].is_string() || measure.values[0].is_null()) return "-";
  return measure.values[run] == measure.values[0] ? "same" : "other";
}

std::vector<std::string> Header(const char* first, const Comparison& comparison, bool has_ratios) {
  std::vector<std::string> header = {first};
  for (const Run& run : comparison.runs) {
    header.push_back(bench::OneLine(run.name));
    if (has_ratios && header.size() > 2) header.push_back("RATIO");
  }
  return header;
}

Table DifferencesOf(const Comparison& comparison) {
  Table table(Header("DIFFERENT", comparison, /*has_ratios=*/false));
  for (const Comparison::Setting& setting : comparison.settings) {
    if (setting.is_same) continue;
    const Field& field = FieldOf(setting.field);
    std::vector<Cell> row = {field.label};
    for (const Json& value : setting.values) row.push_back(TextOf(field, value));
    table.Add(std::move(row));
  }
  return table;
}

// "the same: model mnist_mlp, workers 2"
std::string SameText(const Comparison& comparison) {
  std::vector<std::string> same;
  for (const Comparison::Setting& setting : comparison.settings) {
    const Field& field = FieldOf(setting.field);
    if (setting.is_same) same.push_back(field.label + (" " + TextOf(field, setting.values[0])));
  }
  return same.empty() ? "" : "the same: " + absl::StrJoin(same, ", ") + "\n\n";
}

Table MeasuresOf(const Comparison& comparison) {
  Table table(Header("MEASURE", comparison, /*has_ratios=*/true));
  for (const Comparison::Measure& measure : comparison.measures) {
    const Field& field = FieldOf(measure.field);
    std::vector<Cell> row = {field.label};
    for (size_t i = 0; i < measure.values.size(); ++i) {
      row.push_back(TextOf(field, measure.values[i]));
      if (i > 0) row.push_back(RatioText(measure, i));
    }
    table.Add(std::move(row));
  }
  return table;
}

}  // namespace

absl::StatusOr<Json> ParseResultRecord(std::string_view text) {
  Json record = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  const Json version = record.is_object() ? ValueOf(record, "schema_version") : Json();
  if (!version.is_number_integer() || !ValueOf(record, kParameters.name).is_string()) {
    return InvalidArgument("no result record, or cut off: `muster-trainer --result_json=PATH` writes one");
  }
  if (version != kResultVersion) {
    return InvalidArgument(
        "schema_version is %s, and this muster reads %d: compare it with the muster that its trainer came "
        "with",
        version.dump(), kResultVersion);
  }
  for (const Field& field : kMeasures) MUSTER_RETURN_IF_ERROR(CheckNumber(record, field.name));
  MUSTER_RETURN_IF_ERROR(CheckNumber(record, "parameter_bytes"));
  return record;
}

Comparison Compare(std::vector<Run> runs) {
  MUSTER_CHECK(runs.size() >= 2);
  Comparison comparison;
  for (const Field& field : kSettings) {
    std::vector<Json> values = ValuesOf(runs, field);
    if (AllAre(values, nullptr)) continue;
    const bool is_same = AllAre(values, values[0]);
    comparison.settings.push_back({.field = field.name, .values = std::move(values), .is_same = is_same});
  }
  const auto add_measure = [&](const Field& field) {
    std::vector<Json> values = ValuesOf(runs, field);
    if (AllAre(values, nullptr)) return;
    std::vector<std::optional<double>> ratios = RatiosOf(values);
    comparison.measures.push_back(
        {.field = field.name, .values = std::move(values), .ratios = std::move(ratios)});
  };
  for (const Field& field : kMeasures) add_measure(field);
  add_measure(kParameters);
  comparison.runs = std::move(runs);
  return comparison;
}

std::string ToText(const Comparison& comparison) {
  const Table differences = DifferencesOf(comparison);
  return (differences.empty() ? "" : differences.ToText() + "\n") + SameText(comparison) +
         MeasuresOf(comparison).ToText();
}

std::string ToJson(const Comparison& comparison) {
  nlohmann::ordered_json json = {{"runs", Json::array()},
                                 {"same", Json::object()},
                                 {"different", Json::object()},
                                 {"measures", Json::object()}};
  for (const Run& run : comparison.runs) json["runs"].push_back({{"name", run.name}, {"result", run.result}});
  for (const Comparison::Setting& setting : comparison.settings) {
    if (setting.is_same) {
      json["same"][setting.field] = setting.values[0];
    } else {
      json["different"][setting.field] = setting.values;
    }
  }
  for (const Comparison::Measure& measure : comparison.measures) {
    Json ratios = Json::array();
    for (const std::optional<double>& ratio : measure.ratios) ratios.push_back(ratio ? Json(*ratio) : Json());
    json["measures"][measure.field] = {{"values", measure.values}, {"ratios", std::move(ratios)}};
  }
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace muster
