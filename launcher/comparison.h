// Runs of jobs side by side, by their result records (docs/trainer.md). Pure.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace muster {

/// What a trainer wrote at its end. InvalidArgument: it is none, or one of another schema version, or what is
/// measured in it is no number.
absl::StatusOr<nlohmann::json> ParseResultRecord(std::string_view text);

struct Run {
  std::string name;
  nlohmann::json result;  // as ParseResultRecord has it
};

/// Of two runs at least. The values of a row are those of the runs, in their order; null: it has none.
struct Comparison {
  struct Setting {
    std::string field;
    std::vector<nlohmann::json> values;
    bool is_same = false;
  };
  struct Measure {
    std::string field;  // "pushes.stale" is the stale ones of its pushes
    std::vector<nlohmann::json> values;
    std::vector<std::optional<double>> ratios;  // to the first run; unset: there is none
  };
  std::vector<Run> runs;
  std::vector<Setting> settings;  // what was run, and where
  std::vector<Measure> measures;  // how that went
};

/// Without the rows in which all values are null.
Comparison Compare(std::vector<Run> runs);

/// What differs of the settings, what does not in one line, and the measures.
std::string ToText(const Comparison& comparison);

/// {"runs": [{"name", "result"}], "same": {field: value}, "different": {field: [values]},
/// "measures": {field: {"values", "ratios"}}}
std::string ToJson(const Comparison& comparison);

}  // namespace muster
