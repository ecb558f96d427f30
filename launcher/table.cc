#include "launcher/table.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/status.h"

namespace muster {

void Table::Add(std::vector<std::string> row) {
  MUSTER_CHECK(row.size() == header_.size());
  rows_.push_back(std::move(row));
}

std::string Table::ToText() const {
  std::vector<size_t> widths(header_.size());
  for (size_t i = 0; i < header_.size(); ++i) {
    widths[i] = header_[i].size();
    for (const auto& row : rows_) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  const auto append = [&](const std::vector<std::string>& row) {
    for (size_t i = 0; i < row.size(); ++i) {
      text += row[i];
      if (i + 1 < row.size()) text.append(widths[i] - row[i].size() + 2, ' ');
    }
    text += '\n';
  };
  append(header_);
  for (const auto& row : rows_) append(row);
  return text;
}

std::string Table::ToJson() const {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const auto& row : rows_) {
    nlohmann::ordered_json object;
    for (size_t i = 0; i < row.size(); ++i) {
      std::string key = absl::AsciiStrToLower(header_[i]);
      std::replace(key.begin(), key.end(), ' ', '_');
      object[key] = row[i];
    }
    json.push_back(std::move(object));
  }
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string FormatBytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "kB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 999.5 && unit < 4) {
    value /= 1000;
    ++unit;
  }
  return absl::StrFormat(unit > 0 && value < 9.95 ? "%.1f %s" : "%.0f %s", value, kUnits[unit]);
}

}  // namespace muster
