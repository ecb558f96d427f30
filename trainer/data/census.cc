#include "trainer/data/census.h"

#include <absl/strings/ascii.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <unordered_map>
#include <utility>

#include "base/file.h"
#include "base/gzip.h"
#include "base/quoted_bytes.h"

namespace muster {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 30;
constexpr float kMaxNumber = 1e9f;      // one of 1e20 would be the mean and the deviation of all rows
constexpr size_t kMaxLineBytes = 4096;  // the longest of the real ones takes less than 200

enum class FieldKind { kNumber, kString };
struct Field {
  const char* name;
  FieldKind kind;
};
constexpr std::array<Field, 14> kFields = {{
    {"age", FieldKind::kNumber},
    {"workclass", FieldKind::kString},
    {"fnlwgt", FieldKind::kNumber},
    {"education", FieldKind::kString},
    {"education_num", FieldKind::kNumber},
    {"marital_status", FieldKind::kString},
    {"occupation", FieldKind::kString},
    {"relationship", FieldKind::kString},
    {"race", FieldKind::kString},
    {"gender", FieldKind::kString},
    {"capital_gain", FieldKind::kNumber},
    {"capital_loss", FieldKind::kNumber},
    {"hours_per_week", FieldKind::kNumber},
    {"native_country", FieldKind::kString},
}};
constexpr size_t kFieldsOfLine = kFields.size() + 1;  // the label comes last

std::string_view Strip(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

class Parser {
 public:
  Parser(std::string_view bytes, const std::string& name) : rest_(bytes), name_(name) {}

  absl::StatusOr<CensusDataset> Parse();

 private:
  absl::Status ParseLine(std::string_view line);
  absl::Status ParseNumber(std::string_view text, NumberColumn* column);
  absl::Status ParseString(std::string_view text, size_t index);
  absl::Status ParseLabel(std::string_view text);

  // `place` lies within line_.
  absl::Status Error(const char* place, const std::string& what) const {
    return InvalidArgument("%s:%d:%d: %s", name_, line_number_, place - line_.data() + 1, what);
  }

  std::string_view rest_;
  const std::string& name_;
  std::string_view line_;
  int64_t line_number_ = 0;
  CensusDataset dataset_;
  // By string column, with keys in the file's bytes.
  std::vector<std::unordered_map<std::string_view, int32_t>> codes_;
};

absl::StatusOr<CensusDataset> Parser::Parse() {
  for (const Field& field : kFields) {
    if (field.kind == FieldKind::kNumber) dataset_.table.numbers.push_back({.name = field.name});
    if (field.kind == FieldKind::kString) dataset_.table.strings.push_back({.name = field.name});
  }
  codes_.resize(dataset_.table.strings.size());

  int64_t empty_line_number = 0;  // the first of those that nothing but others like it may follow
  while (!rest_.empty()) {
    const size_t end = std::min(rest_.find('\n'), rest_.size());
    line_ = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    ++line_number_;
    if (line_.size() > kMaxLineBytes)
      return Error(line_.data() + kMaxLineBytes,
                   absl::StrFormat("the line is longer than %d bytes", kMaxLineBytes));
    if (line_.ends_with('\r')) line_.remove_suffix(1);
    if (line_number_ == 1 && line_.starts_with('|')) continue;
    if (Strip(line_).empty()) {
      if (empty_line_number == 0) empty_line_number = line_number_;
      continue;
    }
    if (empty_line_number != 0) {
      line_number_ = empty_line_number;
      return Error(line_.data(), "an empty line before the last one");
    }
    MUSTER_RETURN_IF_ERROR(ParseLine(line_));
  }
  dataset_.table.rows = static_cast<int64_t>(dataset_.labels.size());
  if (dataset_.table.rows == 0) {
    line_number_ = std::max<int64_t>(line_number_, 1);
    return Error(line_.data(), line_.empty() && line_number_ == 1 ? "the file is empty" : "no rows");
  }
  return std::move(dataset_);
}

absl::Status Parser::ParseLine(std::string_view line) {
  if (const size_t fields = std::count(line.begin(), line.end(), ',') + 1; fields != kFieldsOfLine) {
    // Where the missing one would begin, or the first that is too many does.
    const char* place = line.data() + line.size();
    if (fields > kFieldsOfLine) {
      place = line.data();
      for (size_t i = 0; i < kFieldsOfLine; ++i) place = std::find(place, line.data() + line.size(), ',') + 1;
    }
    return Error(place, absl::StrFormat("%d fields where %d are expected", fields, kFieldsOfLine));
  }
  size_t numbers = 0, strings = 0;
  for (const Field& field : kFields) {
    const size_t comma = line.find(',');
    const std::string_view text = Strip(line.substr(0, comma));
    line.remove_prefix(comma + 1);
    MUSTER_RETURN_IF_ERROR(field.kind == FieldKind::kNumber
                               ? ParseNumber(text, &dataset_.table.numbers[numbers++])
                               : ParseString(text, strings++));
  }
  return ParseLabel(Strip(line));
}

absl::Status Parser::ParseNumber(std::string_view text, NumberColumn* column) {
  float value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(std::abs(value) <= kMaxNumber)) {
    return Error(text.data(),
                 absl::StrFormat("%s: expected a number, found %s", column->name, QuotedBytes(text)));
  }
  column->values.push_back(value);
  return absl::OkStatus();
}

absl::Status Parser::ParseString(std::string_view text, size_t index) {
  StringColumn& column = dataset_.table.strings[index];
  auto found = codes_[index].find(text);
  if (found == codes_[index].end()) {
    if (text.empty() || std::any_of(text.begin(), text.end(), absl::ascii_iscntrl)) {
      return Error(text.data(),
                   absl::StrFormat("%s: expected a category, found %s", column.name, QuotedBytes(text)));
    }
    found = codes_[index].emplace(text, static_cast<int32_t>(column.dictionary.size())).first;
    column.dictionary.emplace_back(text);
  }
  column.codes.push_back(found->second);
  return absl::OkStatus();
}

absl::Status Parser::ParseLabel(std::string_view text) {
  std::string_view label = text;
  if (label.ends_with('.')) label.remove_suffix(1);
  if (label != ">50K" && label != "<=50K") {
    return Error(text.data(), "expected the label >50K or <=50K, found " + QuotedBytes(text));
  }
  dataset_.labels.push_back(label == ">50K");
  return absl::OkStatus();
}

absl::StatusOr<CensusDataset> LoadPart(const std::filesystem::path& folder, const std::string& file) {
  MUSTER_ASSIGN_OR_RETURN(const std::filesystem::path path, FindPlainOrGzip(folder, file));
  MUSTER_ASSIGN_OR_RETURN(std::string bytes, ReadRegularFile(path, kMaxFileBytes));
  if (IsGzip(bytes)) {
    MUSTER_ASSIGN_OR_RETURN(bytes, Gunzip(bytes, path.string(), kMaxFileBytes));
  }
  return ParseCensus(bytes, path.string());
}

}  // namespace

absl::StatusOr<CensusDataset> ParseCensus(std::string_view bytes, const std::string& name) {
  return Parser(bytes, name).Parse();
}

absl::StatusOr<Census> LoadCensus(const std::filesystem::path& data_dir) {
  Census census;
  MUSTER_ASSIGN_OR_RETURN(census.train, LoadPart(data_dir / "census", "adult.data"));
  MUSTER_ASSIGN_OR_RETURN(census.test, LoadCensusTestSet(data_dir));
  return census;
}

absl::StatusOr<CensusDataset> LoadCensusTestSet(const std::filesystem::path& data_dir) {
  return LoadPart(data_dir / "census", "adult.test");
}

}  // namespace muster
