// A reader for just the XML that reports are made of, strict in what it takes.
#pragma once

#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace muster::bench {

struct XmlElement {
  std::string name;
  std::map<std::string, std::string> attributes;  // as they stand there
  std::string text;                               // directly in it
};

/// Reads a document of one root, after a "<!DOCTYPE html>" if there is one. `error` is empty, or says what is
/// wrong and where; elements are in the order of their first tags.
class XmlReader {
 public:
  explicit XmlReader(std::string_view text) : all_(text), rest_(text) {
    Skip("<!DOCTYPE html>\n");
    while (error.empty() && !rest_.empty()) {
      if (rest_.starts_with("</")) {
        ReadEnd();
      } else if (rest_.front() == '<') {
        ReadStart();
      } else {
        ReadText();
      }
    }
    if (error.empty() && (!open_.empty() || elements.empty())) Fail("it is not closed, or empty");
  }

  std::vector<const XmlElement*> Named(std::string_view name) const {
    std::vector<const XmlElement*> named;
    for (const XmlElement& element : elements) {
      if (element.name == name) named.push_back(&element);
    }
    return named;
  }

  std::vector<XmlElement> elements;
  std::string error;

 private:
  void Fail(const std::string& what) {
    const size_t at = all_.size() - rest_.size();
    if (error.empty()) error = what + ": " + std::string(all_.substr(at, 60));
    rest_ = {};
  }

  bool Skip(std::string_view expected) {
    if (!rest_.starts_with(expected)) return false;
    rest_.remove_prefix(expected.size());
    return true;
  }

  std::string Name() {
    const auto is_name = [](char c) {
      return isalnum(static_cast<unsigned char>(c)) || c == '-' || c == ':';
    };
    const auto end = std::find_if_not(rest_.begin(), rest_.end(), is_name);
    const std::string name(rest_.begin(), end);
    rest_.remove_prefix(name.size());
    if (name.empty()) Fail("no name");
    return name;
  }

  // Characters and references of text or of a value.
  void Check(std::string_view text) {
    for (size_t i = 0; i < text.size(); ++i) {
      const auto c = static_cast<unsigned char>(text[i]);
      if ((c < 0x20 && c != '\n' && c != '\t') || c == '<' || c == '>') return Fail("a character in text");
      if (c != '&') continue;
      const std::string_view reference = text.substr(i, text.find(';', i) - i + 1);
      constexpr std::string_view kKnown[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;", "&#160;"};
      if (std::find(std::begin(kKnown), std::end(kKnown), reference) == std::end(kKnown)) {
        return Fail("an unknown reference");
      }
    }
  }

  void ReadText() {
    const std::string_view text = rest_.substr(0, rest_.find('<'));
    Check(text);
    if (open_.empty()) {
      if (text != "\n") return Fail("text outside");
    } else {
      elements[open_.back()].text += text;
    }
    rest_.remove_prefix(std::min(text.size(), rest_.size()));
  }

  void ReadStart() {
    Skip("<");
    if (open_.empty() && !elements.empty()) return Fail("a second root");
    XmlElement element = {.name = Name()};
    while (Skip(" ")) {
      const std::string name = Name();
      const size_t end = rest_.find('"', 2);
      if (!Skip("=\"") || end == std::string_view::npos) return Fail("no value");
      const std::string value(rest_.substr(0, end - 2));
      Check(value);
      if (!element.attributes.emplace(name, value).second) return Fail("an attribute twice");
      rest_.remove_prefix(std::min(value.size() + 1, rest_.size()));
    }
    elements.push_back(std::move(element));
    if (Skip("/>")) return;
    open_.push_back(elements.size() - 1);
    if (!Skip(">")) Fail("a tag without an end");
  }

  void ReadEnd() {
    Skip("</");
    const std::string name = Name();
    if (open_.empty() || elements[open_.back()].name != name)
      return Fail("</" + name + "> ends something else");
    open_.pop_back();
    if (!Skip(">")) Fail("a tag without an end");
  }

  const std::string_view all_;
  std::string_view rest_;
  std::vector<size_t> open_;  // indices of elements
};

/// What stands directly in each element of a name.
inline std::vector<std::string> TextsOf(const XmlReader& page, std::string_view name) {
  std::vector<std::string> texts;
  for (const XmlElement* element : page.Named(name)) texts.push_back(element->text);
  return texts;
}

/// Empty, or "line x1=nan": the first attribute for a place or a size that is no finite number, or lies far
/// outside of a chart; lines, which are clipped, may leave it further than the rest.
inline std::string FirstBadNumber(const XmlReader& svg) {
  for (const XmlElement& element : svg.elements) {
    const bool is_clipped = element.name == "polyline";
    for (const char* name : {"x", "y", "x1", "x2", "y1", "y2", "width", "height", "points"}) {
      const auto found = element.attributes.find(name);
      if (found == element.attributes.end()) continue;
      for (const auto word : absl::StrSplit(found->second, absl::ByAnyChar(" ,"))) {
        double number = 0;
        const bool is_number = absl::SimpleAtod(word, &number) && std::isfinite(number);
        const bool is_near = number >= (is_clipped ? -40000 : -0.5) && number <= (is_clipped ? 40000 : 600);
        if (!is_number || !is_near) return element.name + " " + name + "=" + found->second;
      }
    }
  }
  return "";
}

}  // namespace muster::bench
