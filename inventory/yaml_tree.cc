#include "inventory/yaml_tree.h"

#include <absl/strings/escaping.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "base/file.h"
#include "base/nearest.h"

namespace muster {
namespace {

constexpr size_t kMaxDepth = 32;
constexpr size_t kMaxValues = 100'000;

absl::Status ErrorAt(const std::string& path, int line, int column, const std::string& message) {
  return InvalidArgument("%s: %s", SourcePosition{path, line, column}.ToString(), message);
}

constexpr char kTypeTag[] = "type tags (!) are not read here";

// What the handler below throws through yaml-cpp to end the parse; never leaves this file.
struct Refusal {
  YAML::Mark mark;
  std::string message;
};

// Builds the tree from yaml-cpp's events. YAML::Node is not used because it keeps neither duplicate keys nor
// the position of a key, and expands aliases.
class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(std::string_view text, const std::string* path) : text_(text), path_(path) {}

  bool has_document() const { return has_document_; }
  YamlNode TakeRoot() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (has_document_)
      throw Refusal{mark,
                    "the document has ended before this; check the indentation, and that there is no `---`"};
    has_document_ = true;
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    Add(mark, "?", anchor, YamlNode::Kind::kNothing, "");
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { RefuseAnchor(mark); }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    // yaml-cpp takes the rest of the file as the value.
    if (tag == "!" && !QuoteIsClosed(mark.pos)) throw Refusal{mark, "this quote is not closed"};
    if (IsTypeTag(tag)) {
      Add(mark, "", anchor, YamlNode::Kind::kTagged, "");
    } else {
      Add(mark, tag, anchor, YamlNode::Kind::kText, text);
    }
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    Open(mark, Add(mark, tag, anchor, YamlNode::Kind::kList, ""));
  }
  void OnSequenceEnd() override { open_.pop_back(); }

  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    Open(mark, Add(mark, tag, anchor, YamlNode::Kind::kMapping, ""));
  }
  void OnMapEnd() override { open_.pop_back(); }

 private:
  // A mapping or list whose end has not come yet.
  struct OpenNode {
    YamlNode* node;
    bool expects_value = false;  // the last child of the mapping has only its key so far
    std::map<std::string, std::pair<int, int>> keys_seen{};  // with line and column
  };

  // yaml-cpp gives "?" to what is plain and "!" to what is quoted.
  static bool IsTypeTag(const std::string& tag) { return tag != "?" && tag != "!" && !tag.empty(); }

  [[noreturn]] static void RefuseAnchor(const YAML::Mark& mark) {
    throw Refusal{mark, "anchors and aliases (& and *) are not read here; write the value out"};
  }

  // Of the quoted text that starts at `begin`; text in another style has no quotes to close.
  bool QuoteIsClosed(size_t begin) const {
    const char quote = begin < text_.size() ? text_[begin] : '|';
    if (quote != '"' && quote != '\'') return true;
    for (size_t i = begin + 1; i < text_.size(); ++i) {
      const bool doubled = quote == '\'' && text_.substr(i, 2) == "''";
      const bool escaped = quote == '"' && text_[i] == '\\';
      if (doubled || escaped) {
        ++i;
      } else if (text_[i] == quote) {
        return true;
      }
    }
    return false;
  }

  void Open(const YAML::Mark& mark, YamlNode* node) {
    if (open_.size() >= kMaxDepth)
      throw Refusal{mark, absl::StrFormat("nested more than %d deep", kMaxDepth)};
    open_.push_back({node});
  }

  YamlNode* Add(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, YamlNode::Kind kind,
                const std::string& text) {
    if (anchor != YAML::NullAnchor) RefuseAnchor(mark);
    if (IsTypeTag(tag)) throw Refusal{mark, kTypeTag};
    if (text.find('\0') != std::string::npos) throw Refusal{mark, "a NUL character (\\0)"};
    if (++value_count_ > kMaxValues) throw Refusal{mark, absl::StrFormat("more than %d values", kMaxValues)};
    if (!open_.empty() && open_.back().node->kind == YamlNode::Kind::kMapping &&
        !open_.back().expects_value) {
      return AddKey(mark, kind, text);
    }
    YamlNode& node = Place();
    node.kind = kind;
    node.quoted = tag == "!";
    node.text = text;
    node.path = path_;
    node.line = mark.line + 1;
    node.column = mark.column + 1;
    if (kind == YamlNode::Kind::kNothing && !open_.empty()) {
      // The mark of a value that is not there is that of whatever follows it, lines below: name its key, or
      // its list.
      const YamlNode& list = *open_.back().node;
      node.line = node.key_line > 0 ? node.key_line : list.line;
      node.column = node.key_line > 0 ? node.key_column : list.column;
    }
    return &node;
  }

  YamlNode* AddKey(const YAML::Mark& mark, YamlNode::Kind kind, const std::string& text) {
    if (kind != YamlNode::Kind::kText) throw Refusal{mark, "a key must be a word"};
    OpenNode& mapping = open_.back();
    const std::pair place{mark.line + 1, mark.column + 1};
    const auto [first, is_new] = mapping.keys_seen.emplace(text, place);
    if (!is_new) {
      const SourcePosition at{*path_, first->second.first, first->second.second};
      throw Refusal{mark,
                    absl::StrFormat("duplicate key %s, given before at %s", Quoted(text), at.ToString())};
    }
    YamlNode& node = mapping.node->children.emplace_back();
    node.key = text;
    node.key_line = place.first;
    node.key_column = place.second;
    mapping.expects_value = true;
    return &node;
  }

  // Where the next value goes.
  YamlNode& Place() {
    if (open_.empty()) return root_;
    OpenNode& parent = open_.back();
    if (parent.node->kind == YamlNode::Kind::kMapping) {
      parent.expects_value = false;
      return parent.node->children.back();
    }
    return parent.node->children.emplace_back();
  }

  const std::string_view text_;
  const std::string* const path_;
  bool has_document_ = false;
  size_t value_count_ = 0;
  YamlNode root_;
  // Pointers stay good: a node grows no further child while one of its children is open.
  std::vector<OpenNode> open_;
};

// yaml-cpp's words for the mistakes that people make most say little about what to do.
std::string ExplainSyntaxError(const std::string& message) {
  static const std::map<std::string, std::string> kExplanations = {
      {"end of map not found", "does not fit to what stands before it; check the indentation"},
      {"end of sequence not found", "does not fit to the list before it; check the indentation"},
      {"illegal map value", "`key: value` cannot stand here; check the indentation"},
      {"end of sequence flow not found", "the list before this is not closed with ]"},
      {"end of map flow not found", "the mapping before this is not closed with }"},
      {"illegal flow end", "closes a bracket that is not open"},
  };
  const auto explanation = kExplanations.find(message);
  return "not valid YAML: " + (explanation == kExplanations.end() ? message : explanation->second);
}

// The length of the UTF-8 sequence at the start of `text` (RFC 3629), or 0.
size_t Utf8Length(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const auto continues = [&](size_t from, size_t to) {
    for (size_t i = from; i < to; ++i) {
      if ((byte(i) & 0xc0) != 0x80) return false;
    }
    return true;
  };
  const unsigned first = byte(0), second = byte(1);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first < 0xe0) return continues(1, 2) ? 2 : 0;
  if (first >= 0xe0 && first < 0xf0) {
    const bool overlong = first == 0xe0 && second < 0xa0, surrogate = first == 0xed && second >= 0xa0;
    return !overlong && !surrogate && continues(1, 3) ? 3 : 0;
  }
  if (first >= 0xf0 && first < 0xf5) {
    const bool overlong = first == 0xf0 && second < 0x90, too_large = first == 0xf4 && second >= 0x90;
    return !overlong && !too_large && continues(1, 4) ? 4 : 0;
  }
  return 0;
}

// Refuses, with its place, what is not text, and tabs where the depth of a line is decided.
absl::Status CheckText(std::string_view text, const std::string& path) {
  int line = 1;
  size_t line_start = 0;
  bool in_indentation = true;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    const int column = static_cast<int>(i - line_start) + 1;
    if (c == '\n') {
      ++line;
      line_start = ++i;
      in_indentation = true;
      continue;
    }
    if (c == '\t' && in_indentation) {
      return ErrorAt(path, line, column, "tab in the indentation; YAML is indented with spaces");
    }
    // "- " starts an item, and what follows it is indented too.
    const bool dash = c == '-' && i + 1 < text.size() && (text[i + 1] == ' ' || text[i + 1] == '\t');
    in_indentation = in_indentation && (c == ' ' || dash);
    const bool is_control = (static_cast<unsigned char>(c) < ' ' && c != '\t' && c != '\r') || c == 0x7f;
    const size_t length = is_control ? 0 : Utf8Length(text.substr(i, 4));
    if (length == 0) {
      return ErrorAt(
          path, line, column,
          absl::StrFormat("byte 0x%02x: the file is not UTF-8 text", static_cast<unsigned char>(c)));
    }
    i += length;
  }
  return absl::OkStatus();
}

}  // namespace

std::string SourcePosition::ToString() const { return absl::StrFormat("%s:%d:%d", path, line, column); }

const YamlNode* YamlNode::Find(std::string_view wanted) const {
  if (kind != Kind::kMapping) return nullptr;
  for (const YamlNode& child : children) {
    if (child.key == wanted) return &child;
  }
  return nullptr;
}

absl::Status YamlNode::Error(const std::string& message) const {
  return ErrorAt(*path, line, column, message);
}

absl::Status YamlNode::KeyError(const std::string& message) const {
  return ErrorAt(*path, key_line, key_column, message);
}

absl::Status YamlNode::Expected(const std::string& what) const {
  if (kind == Kind::kTagged) return Error(kTypeTag);
  std::string found = "nothing";
  if (kind == Kind::kText) found = quoted ? "the text " + Quoted(text) : Quoted(text);
  if (kind == Kind::kList) found = "a list";
  if (kind == Kind::kMapping) found = "a mapping";
  return Error("expected " + what + ", found " + found);
}

absl::Status YamlNode::CheckText() const {
  if (kind != Kind::kText) return Expected("text");
  return text.empty() ? Error("expected text, found an empty one") : absl::OkStatus();
}

std::string Quoted(std::string_view text) {
  constexpr size_t kLongest = 60;
  const absl::string_view shown(text.data(), std::min(text.size(), kLongest));
  return "\"" + absl::Utf8SafeCEscape(shown) + (text.size() > kLongest ? "...\"" : "\"");
}

std::string JoinWords(const std::vector<std::string>& words) {
  std::string joined;
  for (const std::string& word : words) joined += (joined.empty() ? "" : ", ") + word;
  return joined;
}

std::string DidYouMean(std::string_view word, const std::vector<std::string>& candidates,
                       std::string_view list) {
  constexpr size_t kMostListed = 40;  // words
  const std::string nearest = NearestWord(word, candidates);
  if (!nearest.empty()) return "; did you mean " + Quoted(nearest) + "?";
  const size_t listed = std::min(kMostListed, candidates.size());
  const std::string more =
      listed < candidates.size() ? absl::StrFormat(", and %d more", candidates.size() - listed) : "";
  return absl::StrFormat("; %s: %s%s", list, JoinWords({candidates.begin(), candidates.begin() + listed}),
                         more);
}

absl::StatusOr<std::string> ReadYamlText(const std::filesystem::path& path) {
  absl::StatusOr<std::string> text = ReadFile(path, kMaxYamlBytes);
  if (!text.ok()) return absl::InvalidArgumentError(text.status().message());
  return text;
}

absl::StatusOr<YamlDocument> ParseYaml(std::string_view text, const std::string& path) {
  if (text.size() > kMaxYamlBytes) {
    return InvalidArgument("%s: larger than the %d bytes allowed", path, kMaxYamlBytes);
  }
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);  // a byte order mark, which some editors write
  MUSTER_RETURN_IF_ERROR(CheckText(text, path));
  YamlDocument document{.path = std::make_unique<const std::string>(path)};
  // Without it yaml-cpp reports a quote that is not closed itself, at the end of the file.
  const std::string with_last_newline = std::string(text) + (text.ends_with('\n') ? "" : "\n");
  TreeBuilder builder(text, document.path.get());
  try {
    std::istringstream stream(with_last_newline);
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const Refusal& refusal) {
    return ErrorAt(path, refusal.mark.line + 1, refusal.mark.column + 1, refusal.message);
  } catch (const YAML::Exception& error) {
    const bool placed = !error.mark.is_null();
    return ErrorAt(path, placed ? error.mark.line + 1 : 1, placed ? error.mark.column + 1 : 1,
                   ExplainSyntaxError(error.msg));
  }
  document.root = builder.TakeRoot();
  if (document.root.kind == YamlNode::Kind::kNothing) return ErrorAt(path, 1, 1, "the file is empty");
  return document;
}

}  // namespace muster
