#include "trainer/saved_model.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/quoted_bytes.h"
#include "kernels/elementwise.h"

namespace muster {
namespace {

using Json = nlohmann::json;

constexpr const char* kVersionKey = "muster_model_version";
constexpr const char* kVersion = "1";
constexpr const char* kIdColumnsKey = "id_columns";
constexpr const char* kIdHashKey = "id_hash";
// What trainer/data/feature_columns.h says of hashes.
constexpr const char* kIdHash =
    "XXH64, seed 0: of a string, its bytes; of a bucket, 8 bytes, little-endian; of a cross, its parts' "
    "hashes in their order, 8 bytes each, little-endian; the id is the hash modulo buckets";

// What may stand in messages as it is.
bool IsName(const std::string& text) {
  constexpr size_t kLongest = 40;
  return text.size() <= kLongest && std::all_of(text.begin(), text.end(), absl::ascii_isgraph);
}

bool ParseCrc32c(const std::string& text, uint32_t* crc32c) {
  return text.size() == 8 && std::all_of(text.begin(), text.end(), absl::ascii_isxdigit) &&
         absl::SimpleHexAtoi(text, crc32c);
}

// To compute with them would give an accuracy all the same.
absl::Status CheckFinite(std::span<const TensorView<float>> tensors) {
  for (const TensorView<float>& tensor : tensors) {
    if (!AllFinite(tensor.values)) {
      return InvalidArgument("tensor %s has values that are not finite", QuotedBytes(tensor.name));
    }
  }
  return absl::OkStatus();
}

TensorShape ShapeOf(const TableSpec& table) { return {table.name, {table.rows, table.width}}; }

// All that a model has learned: the tensors of its layout, then its tables.
template <typename T, typename Tables>
std::vector<TensorView<T>> ViewModel(const ModelPlan& plan, std::span<T> parameters, Tables& tables) {
  std::vector<TensorView<T>> views = ViewTensors(plan.layout, parameters);
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    views.push_back({ShapeOf(plan.tables[t]), tables[t]});
  }
  return views;
}

// "age:38.5:13.6,..."
absl::StatusOr<std::vector<NumericFeature>> ParseStandardization(const std::string& text) {
  std::vector<NumericFeature> features;
  const std::vector<std::string> entries = absl::StrSplit(text, ',', absl::SkipEmpty());
  for (const std::string& entry : entries) {
    const std::vector<std::string> fields = absl::StrSplit(entry, ':');
    NumericFeature feature;
    if (fields.size() != 3 || !IsName(fields[0]) || !absl::SimpleAtod(fields[1], &feature.mean) ||
        !absl::SimpleAtod(fields[2], &feature.deviation) || !std::isfinite(feature.mean) ||
        !(feature.deviation > 0 && std::isfinite(feature.deviation))) {
      return InvalidArgument("standardization has %s, expected a column, its mean and its deviation",
                             QuotedBytes(entry));
    }
    feature.column = fields[0];
    features.push_back(std::move(feature));
  }
  return features;
}

std::string FormatStandardization(const std::vector<NumericFeature>& features) {
  return absl::StrJoin(features, ",", [](std::string* out, const NumericFeature& feature) {
    *out += absl::StrFormat("%s:%.17g:%.17g", feature.column, feature.mean, feature.deviation);
  });
}

// What a column's ids are made of, as the header says.
Json DescribeColumn(const BucketizedColumn& column) {
  return {{"number", column.column}, {"boundaries", column.boundaries}};
}

Json DescribeColumn(const HashedColumn& column) {
  return {{"string", column.column}, {"buckets", column.buckets}};
}

Json DescribeColumn(const VocabularyColumn& column) {
  return {{"string", column.column}, {"words", column.words}};
}

Json DescribePart(const CrossPart& part) {
  if (const auto* const name = std::get_if<std::string>(&part)) return *name;
  return DescribeColumn(std::get<BucketizedColumn>(part));
}

Json DescribeColumn(const CrossedColumn& column) {
  Json parts = Json::array();
  for (const CrossPart& part : column.parts) parts.push_back(DescribePart(part));
  return {{"cross", parts}, {"buckets", column.buckets}};
}

// A column that is an input twice is described once.
std::string FormatIdColumns(const std::vector<IdColumn>& columns) {
  if (columns.empty()) return "";
  Json descriptions = Json::object();
  for (const IdColumn& column : columns) {
    const Json description = std::visit([](const auto& kind) { return DescribeColumn(kind); }, column);
    const auto [entry, is_new] = descriptions.emplace(NameOf(column), description);
    MUSTER_CHECK(is_new || *entry == description, NameOf(column));
  }
  return descriptions.dump();
}

// Of a model without ids, none.
std::string HashOf(const std::vector<IdColumn>& columns) { return columns.empty() ? "" : kIdHash; }

// The columns that the model takes, in their order.
absl::Status CheckStandardization(const ModelRecipe& recipe, const std::vector<NumericFeature>& numeric) {
  const auto names = [](const std::vector<NumericFeature>& features) {
    return absl::StrJoin(features, ",",
                         [](std::string* out, const NumericFeature& feature) { *out += feature.column; });
  };
  const std::string expected = recipe.columns ? names(recipe.columns->numeric) : "";
  if (names(numeric) == expected) return absl::OkStatus();
  return InvalidArgument("standardization is of the columns %s, the model takes %s",
                         QuotedBytes(names(numeric)), QuotedBytes(expected));
}

// With other columns, rows of the tables would be taken for other ids than those that they were trained for.
absl::Status CheckIdColumns(const SafetensorsMetadata& metadata, const std::vector<IdColumn>& columns) {
  // Files of an earlier version do not say how it hashed, which was as today.
  const auto hash = metadata.find(kIdHashKey);
  if (hash != metadata.end() && hash->second != HashOf(columns)) {
    return InvalidArgument("%s is %s; this program makes ids by \"%s\"", kIdHashKey,
                           QuotedBytes(hash->second), HashOf(columns));
  }
  const auto entry = metadata.find(kIdColumnsKey);
  const std::string found = entry == metadata.end() ? "" : entry->second;
  if (found == FormatIdColumns(columns)) return absl::OkStatus();
  return InvalidArgument("%s is %s, which is not what this program makes of a table for this model",
                         kIdColumnsKey, QuotedBytes(found));
}

absl::StatusOr<SavedModelInfo> ParseMetadata(const SafetensorsMetadata& metadata) {
  const auto version = metadata.find(kVersionKey);
  if (version == metadata.end()) {
    return InvalidArgument("its metadata has no %s: it was not written by muster-trainer --save_model",
                           kVersionKey);
  }
  if (version->second != kVersion) {
    return InvalidArgument("%s is %s; this program reads %s", kVersionKey, QuotedBytes(version->second),
                           kVersion);
  }
  const auto value = [&](const char* key) -> std::string {
    const auto entry = metadata.find(key);
    return entry == metadata.end() ? "" : entry->second;
  };
  SavedModelInfo info{.config = {.model = value("model"), .variant = value("variant")},
                      .data_set = value("data_set")};
  for (const char* const key : {"model", "variant", "data_set"}) {
    if (!IsName(value(key))) {
      return InvalidArgument("%s is %s, expected a name", key, QuotedBytes(value(key)));
    }
  }
  for (const auto text : absl::StrSplit(value("hidden"), ',', absl::SkipEmpty())) {
    if (!absl::SimpleAtoi(text, &info.config.hidden.emplace_back())) {
      return InvalidArgument("hidden is %s, expected sizes like 512,512", QuotedBytes(value("hidden")));
    }
  }
  if (!ParseCrc32c(value("test_set_crc32c"), &info.test_set_crc32c)) {
    return InvalidArgument("test_set_crc32c is %s, expected 8 hexadecimal digits",
                           QuotedBytes(value("test_set_crc32c")));
  }
  if (!absl::SimpleAtoi(value("steps"), &info.steps)) {
    return InvalidArgument("steps is %s, expected a number", QuotedBytes(value("steps")));
  }
  if (!absl::SimpleAtod(value("test_accuracy"), &info.test_accuracy)) {
    return InvalidArgument("test_accuracy is %s, expected a number", QuotedBytes(value("test_accuracy")));
  }
  MUSTER_ASSIGN_OR_RETURN(info.features.numeric, ParseStandardization(value("standardization")));
  return info;
}

}  // namespace

ModelConfig WithHiddenSizes(const ModelConfig& config, const ModelPlan& plan) {
  ModelConfig complete = config;
  complete.hidden.clear();
  for (size_t i = 0; i + 1 < plan.layers.size(); ++i) {
    const auto* dense = std::get_if<DenseSpec>(&plan.layers[i].spec);
    if (dense == nullptr) return config;
    complete.hidden.push_back(dense->outputs);
  }
  // Of a model that has layers of its own, none can be named.
  return FindModel(complete).ok() ? complete : config;
}

SafetensorsMetadata ToMetadata(const SavedModelInfo& info) {
  return {{kVersionKey, kVersion},
          {"model", info.config.model},
          {"variant", info.config.variant},
          {"hidden", absl::StrJoin(info.config.hidden, ",")},
          {"data_set", info.data_set},
          {"test_set_crc32c", absl::StrFormat("%08x", info.test_set_crc32c)},
          {"steps", absl::StrFormat("%d", info.steps)},
          {"test_accuracy", absl::StrFormat("%.4f", info.test_accuracy)},
          {"standardization", FormatStandardization(info.features.numeric)},
          {kIdColumnsKey, FormatIdColumns(info.features.ids)},
          {kIdHashKey, HashOf(info.features.ids)}};
}

absl::Status SaveModel(const std::filesystem::path& path, const ModelPlan& plan,
                       std::span<const float> parameters, const TableValues& tables,
                       const SavedModelInfo& info) {
  return SaveSafetensors(path, ViewModel(plan, parameters, tables), ToMetadata(info));
}

absl::StatusOr<SavedModel> LoadModel(const std::filesystem::path& path) {
  MUSTER_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Read(path));
  auto info = ParseMetadata(file.metadata());
  if (!info.ok()) return Annotate(info.status(), path.string());
  const auto recipe = FindModel(info->config);
  if (!recipe.ok()) return Annotate(recipe.status(), path.string());
  auto plan = PlanModel(recipe->spec);
  if (!plan.ok()) return Annotate(plan.status(), path.string());
  MUSTER_RETURN_IF_ERROR(Annotate(CheckStandardization(*recipe, info->features.numeric), path.string()));
  if (recipe->columns) info->features.ids = AllFeatures(*recipe->columns).ids;
  MUSTER_RETURN_IF_ERROR(Annotate(CheckIdColumns(file.metadata(), info->features.ids), path.string()));
  // Before memory is taken for a model of any size.
  std::vector<TensorShape> shapes;
  for (const LayoutTensor& tensor : plan->layout.tensors()) {
    shapes.push_back({tensor.spec.name, tensor.spec.shape});
  }
  for (const TableSpec& table : plan->tables) shapes.push_back(ShapeOf(table));
  MUSTER_RETURN_IF_ERROR(file.CheckTensors(shapes));
  FlatBuffer parameters(plan->layout.size());
  TableValues tables;
  for (const TableSpec& table : plan->tables) tables.emplace_back(table.rows * table.width);
  const std::vector<TensorView<float>> tensors = ViewModel(*plan, parameters.values(), tables);
  MUSTER_RETURN_IF_ERROR(file.CopyTo(tensors));
  MUSTER_RETURN_IF_ERROR(Annotate(CheckFinite(tensors), path.string()));
  return SavedModel{.info = *std::move(info),
                    .recipe = *recipe,
                    .plan = *std::move(plan),
                    .parameters = std::move(parameters),
                    .tables = std::move(tables)};
}

}  // namespace muster
