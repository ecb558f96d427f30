// The strict YAML that inventories and job files are written in, as a tree with places; over yaml-cpp.
//
// Stricter than YAML, because a file that means something else than its author thinks is found out on the
// hosts: UTF-8, one document of at most 1 MiB, no tab where indentation is decided, no key given twice, no
// anchors, aliases or type tags (but see kTagged), keys are plain text. Values are text until somebody asks
// for a number: "yes" is a word, and 1.10 a version.
//
// Every error is InvalidArgument and starts with "path:line:column: "; only a file that cannot be read has
// just "path: ". For the .cc files of this folder. No threads; cost is linear in the size of the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "inventory/position.h"

namespace muster {

inline constexpr size_t kMaxYamlBytes = 1 << 20;

/// One value and, inside a mapping, its key. The YamlDocument owns it, and `path` too.
struct YamlNode {
  enum class Kind : uint8_t {
    kNothing,
    kText,
    kList,
    kMapping,
    kTagged  // text with a type tag, as of Ansible's vault, which nobody reads but whoever may leave it out
  };

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

/// "; did you mean "near"?", or, where nothing is near, "; LIST: a, b, c", of many the first.
std::string DidYouMean(std::string_view word, const std::vector<std::string>& candidates,
                       std::string_view list);

}  // namespace muster
