// Feature columns: how the columns of a table become the inputs of a wide & deep model, as plain data.
//
// Ids belong to a trained model, so another program must find the same ones:
//   hash of a string      XXH64 (https://github.com/Cyan4973/xxHash, doc/xxhash_spec.md) of its bytes, seed 0
//   bucket of a number    how many boundaries are at most the number
//   hash of a bucket      XXH64 of the bucket as 8 bytes, little-endian, seed 0
//   hash of a cross       XXH64 of the hashes of its parts, 8 bytes each, little-endian, in their order, seed
//   0
// A hash becomes an id modulo the number of buckets.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/status.h"
#include "trainer/data/column_table.h"

namespace muster {

/// A number x as (x - mean) / deviation; as it is until FitStandardization has been called.
struct NumericFeature {
  std::string column;
  double mean = 0;
  double deviation = 1;
};

/// A number as one of boundaries.size() + 1 buckets: bucket i holds boundaries[i - 1] <= x < boundaries[i].
struct BucketizedColumn {
  std::string column;
  std::vector<float> boundaries;  // increasing
};

/// A string by its hash.
struct HashedColumn {
  std::string column;
  int64_t buckets;
};

/// A string by its position among `words`; any other one has the id words.size().
struct VocabularyColumn {
  std::string column;
  std::vector<std::string> words;  // no word twice
};

/// A column of strings, by its name, or buckets.
using CrossPart = std::variant<std::string, BucketizedColumn>;

/// What two or more parts are together, by the hash of that.
struct CrossedColumn {
  std::vector<CrossPart> parts;
  int64_t buckets;
};

using IdColumn = std::variant<BucketizedColumn, HashedColumn, VocabularyColumn, CrossedColumn>;

/// "education", "age_buckets", "age_buckets_x_education".
std::string NameOf(const IdColumn& column);

/// Ids are in [0, BucketCount).
int64_t BucketCount(const IdColumn& column);

struct FeatureColumns {
  std::vector<NumericFeature> numeric;
  std::vector<IdColumn> ids;
};

struct EncodedFeatures {
  int64_t rows = 0;
  int64_t numeric_count = 0;
  int64_t id_count = 0;
  std::vector<float> numeric;  // [rows, numeric_count], row-major
  std::vector<int32_t> ids;    // [rows, id_count], row-major; column i in [0, BucketCount(ids[i]))
};

/// Sets mean and deviation of each column to those of its values in `table`, which is the training table for
/// every table that is encoded later. Computed in double, in order of the rows; the deviation divides by the
/// number of rows, and is 1 where all values are the same. InvalidArgument: a column that the table lacks, no
/// rows.
absl::Status FitStandardization(const ColumnTable& table, std::vector<NumericFeature>* columns);

/// InvalidArgument names the column: one that the table lacks or that holds the other type, boundaries that
/// are not finite and increasing, no bucket or more than 2^31 - 1, a word that is there twice, a cross of
/// less than two parts. About 10 ns a value.
absl::StatusOr<EncodedFeatures> Encode(const FeatureColumns& columns, const ColumnTable& table);

}  // namespace muster
