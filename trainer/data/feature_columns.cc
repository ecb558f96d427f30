#include "trainer/data/feature_columns.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <absl/strings/str_join.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <unordered_map>

#include "base/nearest.h"

namespace muster {
namespace {

uint64_t Hash(std::string_view bytes) { return XXH64(bytes.data(), bytes.size(), /*seed=*/0); }

// 8 bytes of `out`.
void StoreLittleEndian(uint64_t value, char* out) {
  for (int i = 0; i < 8; ++i) out[i] = static_cast<char>(value >> 8 * i);
}

uint64_t HashOfBucket(uint64_t bucket) {
  char bytes[8];
  StoreLittleEndian(bucket, bytes);
  return Hash({bytes, sizeof bytes});
}

absl::Status NoColumn(const ColumnTable& table, const std::string& name, bool wants_numbers) {
  if (table.FindNumbers(name) != nullptr || table.FindStrings(name) != nullptr) {
    return InvalidArgument("column \"%s\" holds %s where %s are needed", name,
                           wants_numbers ? "strings" : "numbers", wants_numbers ? "numbers" : "strings");
  }
  std::vector<std::string> names;
  for (const NumberColumn& column : table.numbers) names.push_back(column.name);
  for (const StringColumn& column : table.strings) names.push_back(column.name);
  const std::string nearest = NearestWord(name, names);
  return InvalidArgument("the table has no column \"%s\"%s", name,
                         nearest.empty() ? "" : "; did you mean \"" + nearest + "\"?");
}

absl::StatusOr<const NumberColumn*> Numbers(const ColumnTable& table, const std::string& name) {
  const NumberColumn* const column = table.FindNumbers(name);
  if (column == nullptr) return NoColumn(table, name, /*wants_numbers=*/true);
  MUSTER_CHECK(static_cast<int64_t>(column->values.size()) == table.rows, name);
  return column;
}

absl::StatusOr<const StringColumn*> Strings(const ColumnTable& table, const std::string& name) {
  const StringColumn* const column = table.FindStrings(name);
  if (column == nullptr) return NoColumn(table, name, /*wants_numbers=*/false);
  MUSTER_CHECK(static_cast<int64_t>(column->codes.size()) == table.rows, name);
  return column;
}

absl::Status CheckBuckets(const std::string& name, int64_t buckets) {
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (buckets >= 1 && buckets <= kMost) return absl::OkStatus();
  return InvalidArgument("column \"%s\": %d buckets where 1 to %d are possible", name, buckets, kMost);
}

// Values of few kinds: row i is of kind codes[i], and a kind has a hash or an id.
template <typename T>
struct Coded {
  std::vector<T> kinds;
  std::span<const int32_t> codes;    // [rows]
  std::vector<int32_t> codes_owner;  // where the table has none
};

absl::StatusOr<std::vector<int32_t>> Buckets(const BucketizedColumn& column, const ColumnTable& table) {
  MUSTER_ASSIGN_OR_RETURN(const NumberColumn* numbers, Numbers(table, column.column));
  const std::vector<float>& boundaries = column.boundaries;
  for (size_t i = 0; i < boundaries.size(); ++i) {
    if (!std::isfinite(boundaries[i]) || (i > 0 && boundaries[i] <= boundaries[i - 1])) {
      return InvalidArgument("column \"%s\": boundary %g: boundaries are finite and increase", column.column,
                             boundaries[i]);
    }
  }
  std::vector<int32_t> buckets;
  buckets.reserve(table.rows);
  for (const float value : numbers->values) {
    buckets.push_back(static_cast<int32_t>(std::upper_bound(boundaries.begin(), boundaries.end(), value) -
                                           boundaries.begin()));
  }
  return buckets;
}

absl::StatusOr<Coded<uint64_t>> HashesOf(const CrossPart& part, const ColumnTable& table) {
  Coded<uint64_t> hashes;
  if (const auto* const name = std::get_if<std::string>(&part)) {
    MUSTER_ASSIGN_OR_RETURN(const StringColumn* strings, Strings(table, *name));
    for (const std::string& value : strings->dictionary) hashes.kinds.push_back(Hash(value));
    hashes.codes = strings->codes;
    return hashes;
  }
  const auto& column = std::get<BucketizedColumn>(part);
  MUSTER_ASSIGN_OR_RETURN(hashes.codes_owner, Buckets(column, table));
  for (size_t i = 0; i <= column.boundaries.size(); ++i) hashes.kinds.push_back(HashOfBucket(i));
  hashes.codes = hashes.codes_owner;
  return hashes;
}

// Gives each row's id to a sink, in order of the rows: Status operator()(column) per type of column.
template <typename Sink>
class IdEncoder {
 public:
  IdEncoder(const ColumnTable& table, Sink sink) : table_(table), sink_(sink) {}

  absl::Status operator()(const BucketizedColumn& column) {
    MUSTER_ASSIGN_OR_RETURN(const std::vector<int32_t> buckets, Buckets(column, table_));
    for (const int32_t bucket : buckets) sink_(bucket);
    return absl::OkStatus();
  }

  absl::Status operator()(const HashedColumn& column) {
    MUSTER_RETURN_IF_ERROR(CheckBuckets(column.column, column.buckets));
    return EncodeStrings(column.column,
                         [&](const std::string& value) { return Hash(value) % column.buckets; });
  }

  absl::Status operator()(const VocabularyColumn& column) {
    std::unordered_map<std::string_view, size_t> positions;
    for (const std::string& word : column.words) {
      if (!positions.emplace(word, positions.size()).second) {
        return InvalidArgument("column \"%s\": the word \"%s\" is there twice", column.column, word);
      }
    }
    return EncodeStrings(column.column, [&](const std::string& value) {
      const auto found = positions.find(value);
      return found == positions.end() ? column.words.size() : found->second;
    });
  }

  absl::Status operator()(const CrossedColumn& column) {
    const std::string name = NameOf(column);
    MUSTER_RETURN_IF_ERROR(CheckBuckets(name, column.buckets));
    if (column.parts.size() < 2) {
      return InvalidArgument("column \"%s\": a cross of %d parts where 2 or more are needed", name,
                             column.parts.size());
    }
    std::vector<Coded<uint64_t>> parts;
    for (const CrossPart& part : column.parts) {
      MUSTER_ASSIGN_OR_RETURN(Coded<uint64_t> hashes, HashesOf(part, table_));
      parts.push_back(std::move(hashes));
    }
    std::string key(8 * parts.size(), '\0');
    for (int64_t row = 0; row < table_.rows; ++row) {
      char* out = key.data();
      for (const Coded<uint64_t>& part : parts) {
        StoreLittleEndian(part.kinds[part.codes[row]], out);
        out += 8;
      }
      sink_(static_cast<int32_t>(Hash(key) % column.buckets));
    }
    return absl::OkStatus();
  }

 private:
  template <typename IdOf>
  absl::Status EncodeStrings(const std::string& name, IdOf id_of) {
    MUSTER_ASSIGN_OR_RETURN(const StringColumn* strings, Strings(table_, name));
    std::vector<int32_t> ids;
    for (const std::string& value : strings->dictionary) ids.push_back(static_cast<int32_t>(id_of(value)));
    for (const int32_t code : strings->codes) sink_(ids[code]);
    return absl::OkStatus();
  }

  const ColumnTable& table_;
  Sink sink_;
};

}  // namespace

std::string NameOf(const IdColumn& column) {
  struct Namer {
    std::string operator()(const std::string& name) const { return name; }
    std::string operator()(const BucketizedColumn& c) const { return c.column + "_buckets"; }
    std::string operator()(const HashedColumn& c) const { return c.column; }
    std::string operator()(const VocabularyColumn& c) const { return c.column; }
    std::string operator()(const CrossedColumn& c) const {
      return absl::StrJoin(
          c.parts, "_x_", [](std::string* out, const CrossPart& part) { *out += std::visit(Namer{}, part); });
    }
  };
  return std::visit(Namer{}, column);
}

int64_t BucketCount(const IdColumn& column) {
  struct Counter {
    int64_t operator()(const BucketizedColumn& c) const { return std::ssize(c.boundaries) + 1; }
    int64_t operator()(const HashedColumn& c) const { return c.buckets; }
    int64_t operator()(const VocabularyColumn& c) const { return std::ssize(c.words) + 1; }
    int64_t operator()(const CrossedColumn& c) const { return c.buckets; }
  };
  return std::visit(Counter{}, column);
}

absl::Status FitStandardization(const ColumnTable& table, std::vector<NumericFeature>* columns) {
  for (NumericFeature& feature : *columns) {
    MUSTER_ASSIGN_OR_RETURN(const NumberColumn* numbers, Numbers(table, feature.column));
    if (table.rows == 0) return InvalidArgument("column \"%s\": no rows", feature.column);
    const double rows = static_cast<double>(table.rows);
    double sum = 0;
    for (const float value : numbers->values) sum += value;
    feature.mean = sum / rows;
    double squares = 0;
    for (const float value : numbers->values) squares += (value - feature.mean) * (value - feature.mean);
    const double deviation = std::sqrt(squares / rows);
    feature.deviation = deviation > 0 ? deviation : 1;
  }
  return absl::OkStatus();
}

absl::StatusOr<EncodedFeatures> Encode(const FeatureColumns& columns, const ColumnTable& table) {
  EncodedFeatures encoded{
      .rows = table.rows, .numeric_count = std::ssize(columns.numeric), .id_count = std::ssize(columns.ids)};
  encoded.numeric.resize(encoded.rows * encoded.numeric_count);
  for (int64_t i = 0; i < encoded.numeric_count; ++i) {
    const NumericFeature& feature = columns.numeric[i];
    MUSTER_ASSIGN_OR_RETURN(const NumberColumn* numbers, Numbers(table, feature.column));
    for (int64_t row = 0; row < encoded.rows; ++row) {
      encoded.numeric[row * encoded.numeric_count + i] =
          static_cast<float>((numbers->values[row] - feature.mean) / feature.deviation);
    }
  }
  encoded.ids.resize(encoded.rows * encoded.id_count);
  for (int64_t i = 0; i < encoded.id_count; ++i) {
    const auto sink = [out = encoded.ids.data() + i, step = encoded.id_count](int32_t id) mutable {
      *out = id;
      out += step;
    };
    MUSTER_RETURN_IF_ERROR(std::visit(IdEncoder(table, sink), columns.ids[i]));
  }
  return encoded;
}

}  // namespace muster
