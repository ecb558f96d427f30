// Tables, as aligned text or as JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muster {

enum class OutputFormat { kText, kJson };

/// Rows of cells under a header. As JSON: an array of objects whose keys are the header's words in lower
/// case, "_" for spaces.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}

  /// As many cells as the header has.
  void Add(std::vector<std::string> row);
  bool empty() const { return rows_.empty(); }

  /// Columns two spaces apart, the last one not padded.
  std::string ToText() const;
  std::string ToJson() const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

/// "61 MB", "1.2 GB": three significant digits at most, powers of 1000.
std::string FormatBytes(uint64_t bytes);

}  // namespace muster
