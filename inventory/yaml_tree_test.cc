#include "inventory/yaml_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "inventory/yaml_reader.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string ErrorOf(std::string_view text) {
  const auto document = ParseYaml(text, "f");
  if (document.ok()) return "OK";
  EXPECT_EQ(ExitCodeFor(document.status()), 2);
  return std::string(document.status().message());
}

TEST(YamlTree, KeepsTheOrderAndThePlaceOfKeysAndValues) {
  const auto document = ParseYaml("b: one\na:\n  - \"2\"\n  - {c: d}\n", "f");
  ASSERT_TRUE(document.ok()) << document.status();
  const YamlNode& root = document->root;
  ASSERT_EQ(root.children.size(), 2u);
  EXPECT_EQ(root.children[0].key, "b");
  EXPECT_EQ(root.children[0].position().ToString(), "f:1:4");
  EXPECT_FALSE(root.children[0].quoted);
  const YamlNode& list = *root.Find("a");
  EXPECT_EQ(list.key_position().ToString(), "f:2:1");
  EXPECT_EQ(list.children[0].text, "2");
  EXPECT_TRUE(list.children[0].quoted);
  EXPECT_EQ(list.children[1].Find("c")->position().ToString(), "f:4:9");
  EXPECT_EQ(root.Find("missing"), nullptr);
}

TEST(DidYouMean, NamesTheNearestWordOrTheFirstOfAll) {
  EXPECT_EQ(DidYouMean("hots", {"host", "hosts"}, "keys"), "; did you mean \"host\"?");
  EXPECT_EQ(DidYouMean("xyz", {"host", "hosts"}, "keys"), "; keys: host, hosts");
  std::vector<std::string> many(40, "word");
  EXPECT_THAT(DidYouMean("xyz", many, "keys"), ::testing::EndsWith("word, word"));
  many.insert(many.end(), 3, "more");
  EXPECT_THAT(DidYouMean("xyz", many, "keys"), ::testing::EndsWith("word, word, and 3 more"));
}

TEST(YamlTree, RefusesWhatYamlAllowsButPeopleDoNotMean) {
  const struct {
    const char* text;
    const char* error;
  } kCases[] = {
      {"", "f:1:1: the file is empty"},
      {"# only words\n\n", "f:1:1: the file is empty"},
      {"---\n...\n", "f:1:1: the file is empty"},
      {"a:\n\tb: 1\n", "f:2:1: tab in the indentation; YAML is indented with spaces"},
      {"a:\n  \tb: 1\n", "f:2:3: tab in the indentation; YAML is indented with spaces"},
      {"a:\n  - \tb: 1\n", "f:2:5: tab in the indentation; YAML is indented with spaces"},
      {"a:\n  -\tb: 1\n", "f:2:4: tab in the indentation; YAML is indented with spaces"},
      {"a: 1\nb: 2\na: 3\n", "f:3:1: duplicate key \"a\", given before at f:1:1"},
      {"x: {a: 1, a: 2}\n", "f:1:11: duplicate key \"a\", given before at f:1:5"},
      {"a: 1\n\"a\": 2\n", "f:2:1: duplicate key \"a\", given before at f:1:1"},
      {"[a, b]: 1\n", "f:1:1: a key must be a word"},
      {"a: &x 1\n", "f:1:4: anchors and aliases (& and *) are not read here; write the value out"},
      {"a: 1\nb: *x\n", "f:2:4: not valid YAML: the referenced anchor is not defined"},
      {"a: !!map {b: 1}\n", "f:1:4: type tags (!) are not read here"},
      {"!a b: 1\n", "f:1:1: a key must be a word"},
      {"a: \"x\\0y\"\n", "f:1:4: a NUL character (\\0)"},
      {"a: 1\n---\nb: 1\n",
       "f:2:1: the document has ended before this; check the indentation, and that there is no `---`"},
      {"a: [1, 2\n", "f:2:1: not valid YAML: the list before this is not closed with ]"},
      {"a: {b: 1\n", "f:2:1: not valid YAML: the mapping before this is not closed with }"},
      {"a:\n   b: 1\n  c: 2\n",
       "f:3:3: not valid YAML: does not fit to what stands before it; check the indentation"},
      {"a: \"x\" y\n", "f:1:8: not valid YAML: does not fit to what stands before it; check the indentation"},
      {"a: 1\nb\nc: 2\n", "f:3:2: not valid YAML: `key: value` cannot stand here; check the indentation"},
      {"a: 1\n- b\n", "f:2:1: not valid YAML: does not fit to what stands before it; check the indentation"},
      {"a: [x]]\n", "f:1:7: not valid YAML: closes a bracket that is not open"},
      {"a: {x: 1} y\n",
       "f:1:11: not valid YAML: does not fit to what stands before it; check the indentation"},
      {"a: {x: 1}\n  y: 2\n",
       "f:2:3: not valid YAML: does not fit to what stands before it; check the indentation"},
      {"a:\n  b: 1\n c: 1\n",
       "f:3:2: not valid YAML: does not fit to what stands before it; check the indentation"},
      {"- a\nb: 1\n",
       "f:2:1: the document has ended before this; check the indentation, and that there is no `---`"},
      {"a: [b\nc: 1\n", "f:2:2: not valid YAML: the list before this is not closed with ]"},
      {"a: @b\n", "f:1:4: not valid YAML: unknown token"},
      {"a: 1\n b: 2\n", "f:2:3: not valid YAML: `key: value` cannot stand here; check the indentation"},
      {"a: \"x\n", "f:1:4: this quote is not closed"},
      {"\xc3\xa9: 1\r\na: 'it''s \\'\r\nb: \"x\\\"\nc: 1", "f:3:4: this quote is not closed"},
      {"a: 'x\nb: 2\n", "f:1:4: this quote is not closed"},
      {"a: 1\nb: \x01\n", "f:2:4: byte 0x01: the file is not UTF-8 text"},
      {"a: \xff\n", "f:1:4: byte 0xff: the file is not UTF-8 text"},
      {"a: \xc0\xaf\n", "f:1:4: byte 0xc0: the file is not UTF-8 text"},
      {"a: \xed\xa0\x80\n", "f:1:4: byte 0xed: the file is not UTF-8 text"},
      {"a: \xf4\x90\x80\x80\n", "f:1:4: byte 0xf4: the file is not UTF-8 text"},
      {"a: \xe2\x82", "f:1:4: byte 0xe2: the file is not UTF-8 text"},
  };
  for (const auto& test : kCases) EXPECT_EQ(ErrorOf(test.text), test.error) << test.text;
}

TEST(YamlTree, WhatHasATypeTagIsRefusedWhereItIsRead) {
  const auto document = ParseYaml("a: !!int 1\nb: !vault |\n  $ANSIBLE_VAULT;1.1\n  3132\nc: [!x y]\n", "f");
  ASSERT_TRUE(document.ok()) << document.status();
  EXPECT_EQ(document->root.Find("a")->CheckText().message(), "f:1:4: type tags (!) are not read here");
  EXPECT_EQ(document->root.Find("b")->Expected("a list").message(), "f:2:4: type tags (!) are not read here");
  EXPECT_EQ(document->root.Find("c")->children[0].CheckText().message(),
            "f:5:5: type tags (!) are not read here");
  YamlFields fields(*document->root.Find("a"), "x");
  EXPECT_EQ(fields.Finish().message(), "f:1:4: type tags (!) are not read here");
}

TEST(YamlTree, AcceptsTabsElsewhereCarriageReturnsAByteOrderMarkAndUnicode) {
  EXPECT_EQ(ErrorOf("a: 1\t# why\r\nb:\tx\r\n"), "OK");
  EXPECT_EQ(ErrorOf("\xef\xbb\xbf"
                    "a: 1\n"),
            "OK");
  EXPECT_EQ(ErrorOf("# \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\na: \"\xc3\xa9\"\n"), "OK");
}

TEST(YamlTree, AFileThatCannotBeReadIsBadInput) {
  TemporaryDirectory folder;
  const auto big = folder.path() / "big.yaml";
  ASSERT_TRUE(WriteFileAtomically(big, "a: " + std::string(10'000'000, 'x')).ok());
  for (const auto& path : {big, folder.path() / "none.yaml", folder.path()}) {
    const auto text = ReadYamlText(path);
    EXPECT_EQ(ExitCodeFor(text.status()), 2);
    EXPECT_THAT(std::string(text.status().message()), StartsWith(path.string() + ": "));
  }
  EXPECT_EQ(ReadYamlText(big).status().message(), big.string() + ": larger than the 1048576 bytes allowed");
  EXPECT_EQ(ErrorOf("a: " + std::string(kMaxYamlBytes, 'x')), "f: larger than the 1048576 bytes allowed");
}

// Input of the largest size allowed, in the shapes that make parsers slow or deep. That the test ends in its
// time is the point.
TEST(YamlTree, HostileInputEndsWithAnError) {
  const auto repeated = [](std::string_view unit) {
    std::string text;
    while (text.size() + unit.size() <= kMaxYamlBytes) text += unit;
    return text;
  };
  for (const char* unit : {"[",       "{",    "- ",   "? ", "[{", "a: {", "\"", "'",  "&a ", "*a ",  "!",
                           "a: b: ",  "- - ", "|\n ", "%",  ": ", "]",    "}",  ",",  "[,",  "[a, ", "-\n",
                           "--- a\n", "? - ", "{? ",  "a",  "a ", "#",    " ",  "\n", "a:\n"}) {
    EXPECT_THAT(ErrorOf(repeated(unit)), ::testing::AnyOf(StartsWith("f:"), "OK")) << unit;
  }
  EXPECT_THAT(ErrorOf("a: [" + repeated("1,").substr(0, 500'000) + "]"),
              HasSubstr("more than 100000 values"));
  EXPECT_THAT(ErrorOf(std::string(40, '[') + std::string(40, ']')), HasSubstr("nested more than 32 deep"));
}

}  // namespace
}  // namespace muster
