// Tables, as aligned text or as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"

namespace muster {

enum class OutputFormat { kText, kJson };

/// What stands in a table: text for people, and for JSON what it was made of.
struct Cell {
  Cell() = default;  // nothing known: empty, null in JSON
  Cell(std::string text) : text(text), value(std::move(text)) {}
  Cell(const char* text) : Cell(std::string(text)) {}
  Cell(int64_t number) : text(std::to_string(number)), value(number) {}
  Cell(std::vector<std::string> list);  // separated by commas
  static Cell Bytes(uint64_t bytes);    // "61 MB"; in JSON the number
  static Cell Age(Duration age);        // "3m20s"; in JSON seconds
  static Cell Seconds(double seconds);  // "2.5 ms"; in JSON the number

  std::string text;
  std::variant<std::monostate, std::string, int64_t, double, std::vector<std::string>> value;
};

/// Rows of cells under a header. As JSON: an array of objects whose keys are the header's words in lower
/// case, "_" for spaces.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}

  /// As many cells as the header has.
  void Add(std::vector<Cell> row);
  bool empty() const { return rows_.empty(); }
  const std::vector<std::string>& header() const { return header_; }
  const std::vector<std::vector<Cell>>& rows() const { return rows_; }

  /// Columns two spaces apart, the last one not padded.
  std::string ToText() const;
  std::string ToJson() const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<Cell>> rows_;
};

/// "61 MB", "1.2 GB": three significant digits at most, powers of 1000.
std::string FormatBytes(uint64_t bytes);

}  // namespace muster
