// The census set: UCI's "Adult" (B. Becker, R. Kohavi, 1996, https://doi.org/10.24432/C5XW20), people of the
// US census of 1994 and whether they earned more than 50,000 dollars a year.
//
// The files are lines of 15 fields between commas. White space around a field is not part of it; a value that
// is not known is written "?" and is a category like the others. Strict: a file that is not exactly that is
// refused with FILE:LINE:COLUMN.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "trainer/data/column_table.h"

namespace muster {

inline constexpr int64_t kCensusTrainSize =
    32'561;  // people in UCI's adult.data; other files may have other numbers

/// The columns of the table, in the order and with the names that the TensorFlow examples give them: numbers
/// age, fnlwgt, education_num, capital_gain, capital_loss, hours_per_week; strings workclass, education,
/// marital_status, occupation, relationship, race, gender, native_country.
struct CensusDataset {
  ColumnTable table;
  std::vector<uint8_t> labels;  // [rows], 1: more than 50,000
  int64_t size() const { return table.rows; }
};

struct Census {
  CensusDataset train;
  CensusDataset test;
};

/// Reads adult.data and adult.test from `data_dir`/census, each plain or, if there is no plain one, with .gz
/// appended. NotFound names a missing file; InvalidArgument what ParseCensus refuses, and damaged gzip data.
absl::StatusOr<Census> LoadCensus(const std::filesystem::path& data_dir);

/// The same of adult.test alone.
absl::StatusOr<CensusDataset> LoadCensusTestSet(const std::filesystem::path& data_dir);

/// One file from memory; `name` stands in errors. A first line that begins with '|' is a comment, labels may
/// end in a period (both as in adult.test), lines may end in CR LF and empty ones may follow the last.
/// InvalidArgument: another number of fields, a number that is none or not finite, an empty category or one
/// with control characters, another label, an empty line between others, a line of more than 4096 bytes, no
/// rows.
absl::StatusOr<CensusDataset> ParseCensus(std::string_view bytes, const std::string& name);

}  // namespace muster
