// From YAML to structs: readers of single values, and YamlFields, which reads the keys of a mapping.
//
// Errors as in yaml_tree.h. For the .cc files of this folder.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/status.h"
#include "inventory/yaml_tree.h"

namespace muster {

// Readers of one value: functions from a node to a value, to be given to YamlFields.

absl::StatusOr<std::string> YamlText(const YamlNode& node);  // not empty
absl::StatusOr<bool> YamlBoolean(const YamlNode& node);      // true or false
absl::StatusOr<int64_t> ParseYamlInteger(const YamlNode& node, int64_t minimum, int64_t maximum);
/// A finite decimal number in [minimum, maximum].
absl::StatusOr<double> ParseYamlNumber(const YamlNode& node, double minimum, double maximum);
/// A duration like 500ms, 10s, 5m or 2h, in milliseconds, up to 24 hours.
absl::StatusOr<int64_t> YamlDurationMs(const YamlNode& node);

template <std::integral T>
auto YamlInteger(T minimum, T maximum) {
  return [=](const YamlNode& node) -> absl::StatusOr<T> {
    MUSTER_ASSIGN_OR_RETURN(const int64_t value, ParseYamlInteger(node, minimum, maximum));
    return static_cast<T>(value);
  };
}

inline auto YamlNumber(double minimum, double maximum) {
  return [=](const YamlNode& node) { return ParseYamlNumber(node, minimum, maximum); };
}

/// One word of a table. `what` names the thing in messages: `unknown WHAT "word"; did you mean ...`.
template <typename T>
auto YamlChoice(std::string what, std::vector<std::pair<std::string, T>> table) {
  return [what = std::move(what), table = std::move(table)](const YamlNode& node) -> absl::StatusOr<T> {
    std::vector<std::string> words;
    for (const auto& [word, value] : table) {
      if (node.kind == YamlNode::Kind::kText && node.text == word) return value;
      words.push_back(word);
    }
    if (node.kind != YamlNode::Kind::kText) return node.Expected("one of " + JoinWords(words));
    return node.Error("unknown " + what + " " + Quoted(node.text) +
                      DidYouMean(node.text, words, "it is one of"));
  };
}

/// What a reader makes of a node.
template <typename Read>
using YamlResult = typename std::invoke_result_t<Read, const YamlNode&>::value_type;

/// A list in which `read` reads each item.
template <typename Read>
auto YamlList(std::string what, Read read) {
  return [what = std::move(what),
          read = std::move(read)](const YamlNode& node) -> absl::StatusOr<std::vector<YamlResult<Read>>> {
    if (node.kind != YamlNode::Kind::kList) return node.Expected("a list of " + what);
    std::vector<YamlResult<Read>> items;
    for (const YamlNode& child : node.children) {
      MUSTER_ASSIGN_OR_RETURN(YamlResult<Read> item, read(child));
      items.push_back(std::move(item));
    }
    return items;
  };
}

/// As YamlList; a value that is not a list is a list of one.
template <typename Read>
auto YamlOneOrMore(std::string what, Read read) {
  return [list = YamlList(std::move(what), read),
          read](const YamlNode& node) -> absl::StatusOr<std::vector<YamlResult<Read>>> {
    if (node.kind == YamlNode::Kind::kList) return list(node);
    MUSTER_ASSIGN_OR_RETURN(YamlResult<Read> item, read(node));
    return std::vector<YamlResult<Read>>{std::move(item)};
  };
}

/// A folder on a host, "/x" or "~/x", as it is written; without control characters.
absl::StatusOr<std::string> YamlRemoteFolder(const YamlNode& node);

/// A path on this machine: "~/x" is under `home` (empty: refused), "x" is under the folder of the file it is
/// written in.
absl::StatusOr<std::string> ResolveLocalPath(const YamlNode& node, const std::string& home);

inline auto YamlLocalPath(std::string home) {
  return [home = std::move(home)](const YamlNode& node) { return ResolveLocalPath(node, home); };
}

/// Reads the keys of one mapping into the fields of a struct: Read each key, then Finish.
///
/// The keys that were asked for are the ones that may be there. Of several errors Finish returns the one that
/// stands first in the file, and a missing key only if there is no other. `key:` with nothing after it is a
/// mapping without keys.
class YamlFields {
 public:
  /// `what` names the mapping in messages. `mapping` must outlive this object.
  YamlFields(const YamlNode& mapping, std::string what);

  /// If the key is there, stores read(value), a StatusOr of something assignable to *target.
  template <typename Target, typename Parse>
  void Read(const std::string& key, Target* target, Parse read) {
    const YamlNode* node = Find(key);
    if (node == nullptr) return;
    auto value = read(*node);
    if (value.ok()) {
      *target = *std::move(value);
    } else {
      Fail(*node, value.status());
    }
  }

  template <typename Target, typename Parse>
  void Require(const std::string& key, Target* target, Parse read) {
    Read(key, target, std::move(read));
    RequireKey(key);
  }

  absl::Status Finish();

 private:
  const YamlNode* Find(const std::string& key);
  void RequireKey(const std::string& key);
  void Fail(const YamlNode& child, absl::Status status);

  const YamlNode& mapping_;
  const std::string what_;
  std::vector<std::string> known_keys_;
  std::pair<int, int> first_error_place_;
  absl::Status first_error_;
  absl::Status missing_;
};

}  // namespace muster
