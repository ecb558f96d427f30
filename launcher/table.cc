#include "launcher/table.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_format.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "base/status.h"

namespace muster {

Cell::Cell(std::vector<std::string> list) : text(absl::StrJoin(list, ",")), value(std::move(list)) {}

Cell Cell::Bytes(uint64_t bytes) {
  Cell cell(static_cast<int64_t>(bytes));
  cell.text = FormatBytes(bytes);
  return cell;
}

Cell Cell::Age(Duration age) {
  Cell cell(FormatAge(age));
  cell.value = ToSeconds(age);
  return cell;
}

Cell Cell::Seconds(double seconds) {
  Cell cell(seconds < 1e-3   ? absl::StrFormat("%.0f us", seconds * 1e6)
            : seconds < 1e-2 ? absl::StrFormat("%.1f ms", seconds * 1e3)
            : seconds < 1    ? absl::StrFormat("%.0f ms", seconds * 1e3)
            : seconds < 10   ? absl::StrFormat("%.1f s", seconds)
                             : absl::StrFormat("%.0f s", seconds));
  cell.value = seconds;
  return cell;
}

void Table::Add(std::vector<Cell> row) {
  MUSTER_CHECK(row.size() == header_.size());
  rows_.push_back(std::move(row));
}

std::string Table::ToText() const {
  std::vector<size_t> widths(header_.size());
  for (size_t i = 0; i < header_.size(); ++i) {
    widths[i] = header_[i].size();
    for (const auto& row : rows_) widths[i] = std::max(widths[i], row[i].text.size());
  }
  std::string text;
  const auto append = [&](size_t column, const std::string& cell) {
    const bool last = column + 1 == header_.size();
    text += last ? cell + '\n' : cell + std::string(widths[column] - cell.size() + 2, ' ');
  };
  for (size_t i = 0; i < header_.size(); ++i) append(i, header_[i]);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) append(i, row[i].text);
  }
  return text;
}

std::string Table::ToJson() const {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const auto& row : rows_) {
    nlohmann::ordered_json object;
    for (size_t i = 0; i < row.size(); ++i) {
      std::string key = absl::AsciiStrToLower(header_[i]);
      std::replace(key.begin(), key.end(), ' ', '_');
      std::visit(
          [&](const auto& value) {
            if constexpr (std::is_same_v<decltype(value), const std::monostate&>) {
              object[key] = nullptr;
            } else {
              object[key] = value;
            }
          },
          row[i].value);
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
