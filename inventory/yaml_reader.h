// The strict YAML that inventories and job files are written in, over yaml-cpp.
//
// Stricter than YAML, because a file that means something else than its author thinks is found out on the
// hosts: UTF-8, one document of at most 1 MiB, no tab where indentation is decided, no key given twice, no
// anchors, aliases or type tags, keys are plain text. What a value means is decided by who reads it, so `on:
// no` is the text "no" and a version is never a number.
//
// Every error is InvalidArgument and starts with "path:line:column: "; only a file that cannot be read has
// just "path: ". The reader classes belong to the .cc files of this folder. No threads; cost is linear in the
// size of the file.
#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/status.h"
#include "inventory/position.h"

namespace muster {

inline constexpr size_t kMaxYamlBytes = 1 << 20;

/// One value and, inside a mapping, its key. Points into the YamlDocument that owns it.
struct YamlNode {
  enum class Kind : uint8_t { kNothing, kText, kList, kMapping };

  Kind kind = Kind::kNothing;
  bool quoted = false;  // kText: written in quotes or as a block
  std::string text;     // kText
  std::string key;      // in a mapping
  int line = 1;
  int column = 1;
  int key_line = 0;  // 0: not in a mapping
  int key_column = 0;
  std::vector<YamlNode> children;  // of a list or a mapping, in the order of the file
  const std::string* path = nullptr;

  SourcePosition position() const { return {*path, line, column}; }
  SourcePosition key_position() const { return {*path, key_line, key_column}; }

  /// The child with this key, or nullptr.
  const YamlNode* Find(std::string_view key) const;

  /// "path:line:column: message", at the value or at its key.
  absl::Status Error(const std::string& message) const;
  absl::Status KeyError(const std::string& message) const;

  /// Error("expected WHAT, found ..."), with the value as it was written.
  absl::Status Expected(const std::string& what) const;

  /// OK if this is text, and not empty.
  absl::Status CheckText() const;
};

struct YamlDocument {
  std::unique_ptr<const std::string> path;
  YamlNode root;
};

/// The file's text. A file that cannot be read, or is too large, is InvalidArgument too: the user gave its
/// name.
absl::StatusOr<std::string> ReadYamlText(const std::filesystem::path& path);

/// `path` is only for messages. Refuses an empty document.
absl::StatusOr<YamlDocument> ParseYaml(std::string_view text, const std::string& path);

/// The text in quotes, escaped, and cut if it is long.
std::string Quoted(std::string_view text);

/// "a, b, c"
std::string JoinWords(const std::vector<std::string>& words);

/// "; did you mean "near"?", or, where nothing is near, "; LIST: a, b, c".
std::string DidYouMean(std::string_view word, const std::vector<std::string>& candidates,
                       std::string_view list);

// Readers of one value: functions from a node to a value, to be given to YamlFields.

absl::StatusOr<std::string> YamlText(const YamlNode& node);  // not empty
absl::StatusOr<bool> YamlBoolean(const YamlNode& node);      // true or false
absl::StatusOr<int64_t> ParseYamlInteger(const YamlNode& node, int64_t minimum, int64_t maximum);
/// A finite decimal number, above 0 and at most `maximum`.
absl::StatusOr<double> ParseYamlPositiveNumber(const YamlNode& node, double maximum);
/// A duration like 500ms, 10s, 5m or 2h, in milliseconds, up to 24 hours.
absl::StatusOr<int64_t> YamlDurationMs(const YamlNode& node);

template <std::integral T>
auto YamlInteger(T minimum, T maximum) {
  return [=](const YamlNode& node) -> absl::StatusOr<T> {
    MUSTER_ASSIGN_OR_RETURN(const int64_t value, ParseYamlInteger(node, minimum, maximum));
    return static_cast<T>(value);
  };
}

inline auto YamlPositiveNumber(double maximum) {
  return [=](const YamlNode& node) { return ParseYamlPositiveNumber(node, maximum); };
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

/// A folder on a host, "/x" or "~/x", as it is written.
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
