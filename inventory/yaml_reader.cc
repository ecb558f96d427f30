#include "inventory/yaml_reader.h"

#include <absl/strings/ascii.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <optional>
#include <string_view>

namespace muster {
namespace {

// The number that is the whole of `text`.
template <typename T>
std::optional<T> ParseWhole(std::string_view text) {
  T value;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// YAML 1.1 reads 010 as eight.
bool HasLeadingZero(std::string_view text) {
  if (text.starts_with('-')) text.remove_prefix(1);
  return text.size() > 1 && text[0] == '0' && text[1] != '.';
}

// May be infinite or NaN.
std::optional<double> RealNumber(const YamlNode& node) {
  const bool number = node.kind == YamlNode::Kind::kText && !node.quoted && !HasLeadingZero(node.text);
  return number ? ParseWhole<double>(node.text) : std::nullopt;
}

}  // namespace

absl::StatusOr<std::string> YamlText(const YamlNode& node) {
  MUSTER_RETURN_IF_ERROR(node.CheckText());
  return node.text;
}

absl::StatusOr<bool> YamlBoolean(const YamlNode& node) {
  if (node.kind == YamlNode::Kind::kText && !node.quoted) {
    // The core schema of YAML 1.2.
    for (const char* text : {"true", "True", "TRUE"}) {
      if (node.text == text) return true;
    }
    for (const char* text : {"false", "False", "FALSE"}) {
      if (node.text == text) return false;
    }
  }
  return node.Expected("true or false");
}

absl::StatusOr<int64_t> ParseYamlInteger(const YamlNode& node, int64_t minimum, int64_t maximum) {
  const bool number = node.kind == YamlNode::Kind::kText && !node.quoted && !HasLeadingZero(node.text);
  const std::optional<int64_t> value = number ? ParseWhole<int64_t>(node.text) : std::nullopt;
  if (!value || *value < minimum || *value > maximum) {
    return node.Expected(absl::StrFormat("a whole number from %d to %d", minimum, maximum));
  }
  return *value;
}

absl::StatusOr<double> ParseYamlNumber(const YamlNode& node, double minimum, double maximum) {
  const std::optional<double> value = RealNumber(node);
  if (!value || !(*value >= minimum && *value <= maximum)) {
    return node.Expected(absl::StrFormat("a number from %g to %g", minimum, maximum));
  }
  return *value;
}

absl::StatusOr<int64_t> YamlDurationMs(const YamlNode& node) {
  constexpr std::pair<std::string_view, int64_t> kUnits[] = {
      {"ms", 1}, {"s", 1000}, {"m", 60 * 1000}, {"h", 3600 * 1000}};
  constexpr int64_t kLongestMs = 24 * 3600 * 1000;
  if (node.kind == YamlNode::Kind::kText) {
    for (const auto& [unit, unit_ms] : kUnits) {
      std::string_view number = node.text;
      if (!number.ends_with(unit)) continue;
      number.remove_suffix(unit.size());
      const std::optional<int64_t> count = ParseWhole<int64_t>(number);
      if (count && *count > 0 && *count <= kLongestMs / unit_ms) return *count * unit_ms;
    }
  }
  return node.Expected("a duration like 500ms, 10s, 5m or 2h, at most 24h");
}

absl::StatusOr<std::string> YamlRemoteFolder(const YamlNode& node) {
  MUSTER_RETURN_IF_ERROR(node.CheckText());
  const std::string& folder = node.text;
  if (folder[0] != '/' && folder != "~" && !folder.starts_with("~/")) {
    return node.Error(Quoted(folder) + " must start with / or ~/: it is a folder on the host");
  }
  // It stands in command lines for the host's shell, and shells do not agree on how to quote a line break.
  if (std::any_of(folder.begin(), folder.end(), absl::ascii_iscntrl)) {
    return node.Error(Quoted(folder) + " holds a control character; give the host a folder without one");
  }
  return folder;
}

absl::StatusOr<std::string> ResolveLocalPath(const YamlNode& node, const std::string& home) {
  MUSTER_RETURN_IF_ERROR(node.CheckText());
  const std::string& text = node.text;
  std::filesystem::path resolved;
  if (text.starts_with('~')) {
    if (text.size() > 1 && text[1] != '/')
      return node.Error("only ~/ is understood, not the home of another user");
    if (home.empty()) return node.Error("~ cannot be resolved: HOME is not set");
    resolved = home + text.substr(1);
  } else {
    // An absolute path replaces what it is appended to.
    resolved = std::filesystem::path(*node.path).parent_path() / text;
  }
  return resolved.lexically_normal().string();
}

YamlFields::YamlFields(const YamlNode& mapping, std::string what)
    : mapping_(mapping), what_(std::move(what)) {
  if (mapping.kind != YamlNode::Kind::kNothing && mapping.kind != YamlNode::Kind::kMapping) {
    first_error_ = mapping.Expected("a mapping (`key: value`) in " + what_);
  }
}

const YamlNode* YamlFields::Find(const std::string& key) {
  known_keys_.push_back(key);
  return mapping_.Find(key);
}

void YamlFields::RequireKey(const std::string& key) {
  if (mapping_.Find(key) == nullptr && missing_.ok()) {
    missing_ = mapping_.Error(absl::StrFormat("%s is missing in %s", Quoted(key), what_));
  }
}

void YamlFields::Fail(const YamlNode& child, absl::Status status) {
  const std::pair place{child.key_line, child.key_column};
  if (!first_error_.ok() && first_error_place_ <= place) return;
  first_error_ = std::move(status);
  first_error_place_ = place;
}

absl::Status YamlFields::Finish() {
  for (const YamlNode& child : mapping_.children) {
    if (mapping_.kind != YamlNode::Kind::kMapping) break;
    if (std::find(known_keys_.begin(), known_keys_.end(), child.key) != known_keys_.end()) continue;
    Fail(child, child.KeyError(absl::StrFormat("unknown key %s in %s%s", Quoted(child.key), what_,
                                               DidYouMean(child.key, known_keys_, "keys there are"))));
  }
  return first_error_.ok() ? missing_ : first_error_;
}

}  // namespace muster
