// Tables: named columns of numbers and of strings, all of the same length.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace muster {

struct NumberColumn {
  std::string name;
  std::vector<float> values;  // [rows], finite
};

/// Strings of which many rows have the same one.
struct StringColumn {
  std::string name;
  std::vector<std::string> dictionary;  // no string twice
  std::vector<int32_t> codes;           // [rows], positions in the dictionary
  const std::string& value(int64_t row) const { return dictionary[codes[row]]; }
};

/// Immutable once made: any thread may read it. No two columns have the same name.
struct ColumnTable {
  int64_t rows = 0;
  std::vector<NumberColumn> numbers;
  std::vector<StringColumn> strings;

  /// The column of that name, or nullptr.
  const NumberColumn* FindNumbers(std::string_view name) const { return Find(numbers, name); }
  const StringColumn* FindStrings(std::string_view name) const { return Find(strings, name); }

 private:
  template <typename Column>
  static const Column* Find(const std::vector<Column>& columns, std::string_view name) {
    for (const Column& column : columns) {
      if (column.name == name) return &column;
    }
    return nullptr;
  }
};

}  // namespace muster
