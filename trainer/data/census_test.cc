#include "trainer/data/census.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>

#include "base/file.h"
#include "base/gzip.h"
#include "base/random.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kPerson[] =
    "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, "
    "40, United-States, <=50K";
constexpr char kOther[] =
    "54, ?, 148657, Preschool, 1, Married-civ-spouse, ?, Wife, White, Female, 0, 1902.5, 40, Mexico, >50K";

std::string Lines(const std::vector<std::string>& lines, const std::string& end = "\n") {
  std::string text;
  for (const std::string& line : lines) text += line + end;
  return text;
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

std::string Error(const std::string& bytes) {
  const absl::Status status = ParseCensus(bytes, "file").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bytes.substr(0, 200);
  return std::string(status.message());
}

// What every table that was read must be.
void ExpectConsistent(const CensusDataset& dataset) {
  const size_t rows = dataset.labels.size();
  EXPECT_EQ(dataset.size(), static_cast<int64_t>(rows));
  ASSERT_EQ(dataset.table.numbers.size(), 6u);
  ASSERT_EQ(dataset.table.strings.size(), 8u);
  for (const NumberColumn& column : dataset.table.numbers) EXPECT_EQ(column.values.size(), rows);
  for (const StringColumn& column : dataset.table.strings) {
    EXPECT_EQ(column.codes.size(), rows);
    for (const int32_t code : column.codes) {
      ASSERT_TRUE(code >= 0 && code < static_cast<int32_t>(column.dictionary.size())) << column.name;
    }
  }
}

TEST(ParseCensus, GivesTheColumnsTheirNamesAndValues) {
  const auto dataset = ParseCensus(Lines({kPerson, kOther, kPerson}), "file");
  ASSERT_TRUE(dataset.ok()) << dataset.status();
  ExpectConsistent(*dataset);
  EXPECT_THAT(dataset->labels, ElementsAre(0, 1, 0));
  const std::vector<std::pair<std::string, std::vector<float>>> numbers = {{"age", {39, 54, 39}},
                                                                           {"fnlwgt", {77516, 148657, 77516}},
                                                                           {"education_num", {13, 1, 13}},
                                                                           {"capital_gain", {2174, 0, 2174}},
                                                                           {"capital_loss", {0, 1902.5, 0}},
                                                                           {"hours_per_week", {40, 40, 40}}};
  for (const auto& [name, values] : numbers) {
    ASSERT_NE(dataset->table.FindNumbers(name), nullptr) << name;
    EXPECT_EQ(dataset->table.FindNumbers(name)->values, values) << name;
  }
  const std::vector<std::vector<std::string>> strings = {
      {"workclass", "State-gov", "?"},
      {"education", "Bachelors", "Preschool"},
      {"marital_status", "Never-married", "Married-civ-spouse"},
      {"occupation", "Adm-clerical", "?"},
      {"relationship", "Not-in-family", "Wife"},
      {"race", "White", "White"},
      {"gender", "Male", "Female"},
      {"native_country", "United-States", "Mexico"}};
  for (const auto& column : strings) {
    const StringColumn* found = dataset->table.FindStrings(column[0]);
    ASSERT_NE(found, nullptr) << column[0];
    EXPECT_EQ(found->value(0), column[1]);
    EXPECT_EQ(found->value(1), column[2]);
    EXPECT_EQ(found->codes[2], found->codes[0]);
  }
  EXPECT_EQ(dataset->table.FindNumbers("gender"), nullptr);
  EXPECT_EQ(dataset->table.FindStrings("age"), nullptr);
}

TEST(ParseCensus, TakesWhatTheTestFileDoesDifferently) {
  const auto plain = ParseCensus(Lines({kPerson, kOther}), "file");
  ASSERT_TRUE(plain.ok()) << plain.status();
  const std::string person = std::string(kPerson) + ".", other = std::string(kOther) + ".";
  std::string dense = kOther;
  for (size_t at; (at = dense.find(", ")) != std::string::npos;) dense.erase(at + 1, 1);
  for (const std::string& bytes : {
           Lines({"|1x3 Cross validator", person, other}),
           Lines({person, other}, "\r\n"),
           Lines({person, other, "", "  ", ""}),
           person + "\n" + other,
           "\t" + Replaced(person, "State-gov", "  State-gov\t ") + "  \n" + dense,
       }) {
    const auto dataset = ParseCensus(bytes, "file");
    ASSERT_TRUE(dataset.ok()) << dataset.status();
    EXPECT_EQ(dataset->labels, plain->labels);
    for (size_t i = 0; i < plain->table.numbers.size(); ++i) {
      EXPECT_EQ(dataset->table.numbers[i].values, plain->table.numbers[i].values);
    }
    for (size_t i = 0; i < plain->table.strings.size(); ++i) {
      EXPECT_EQ(dataset->table.strings[i].dictionary, plain->table.strings[i].dictionary);
      EXPECT_EQ(dataset->table.strings[i].codes, plain->table.strings[i].codes);
    }
  }
}

TEST(ParseCensus, NamesThePlaceOfWhatIsWrong) {
  const auto second_line = [](const std::string& from, const std::string& to) {
    return Lines({kPerson, Replaced(kOther, from, to), kPerson});
  };
  const std::string line = kOther;
  const auto place = [&](const std::string& of) { return absl::StrFormat("file:2:%d: ", line.find(of) + 1); };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "file:1:1: the file is empty"},
      {"\n\n", "file:2:1: no rows"},
      {"|1x3 Cross validator\n", "file:1:1: no rows"},
      {"<!DOCTYPE html>", "file:1:16: 1 fields where 15 are expected"},
      {second_line(", >50K", ""), place(", >50K") + "14 fields where 15 are expected"},
      {second_line("Mexico", "Mexico, Mexico"),
       absl::StrFormat("file:2:%d: 16 fields", line.find(">50K") + 1 + 7)},
      {second_line("54", "?"), "file:2:1: age: expected a number, found \"?\""},
      {second_line("54", ""), "file:2:1: age: expected a number, found \"\""},
      {second_line("148657", "14x"), place("148657") + "fnlwgt: expected a number, found \"14x\""},
      {second_line("148657", "nan"), place("148657") + "fnlwgt"},
      {second_line("148657", "inf"), place("148657") + "fnlwgt"},
      {second_line("148657", "1e99"), place("148657") + "fnlwgt"},
      {second_line("148657", "-1000000064"), place("148657") + "fnlwgt"},
      {second_line("148657", "0x10"), place("148657") + "fnlwgt"},
      {second_line("148657", "1 2"), place("148657") + "fnlwgt"},
      {second_line("Wife", ""), place("Wife") + "relationship: expected a category, found \"\""},
      {second_line("Wife", "Wi\033fe"),
       place("Wife") + "relationship: expected a category, found \"Wi\\033fe\""},
      {second_line(">50K", "50K"), place(">50K") + "expected the label >50K or <=50K, found \"50K\""},
      {second_line(">50K", ">50K.."), place(">50K") + "expected the label"},
      {second_line(">50K", std::string(100, 'x')), place(">50K") + "expected the label"},
      {Lines({kPerson, "", kPerson}), "file:2:1: an empty line before the last one"},
      {Lines({kPerson, "| a comment"}), "file:2:12: 1 fields where 15 are expected"},
      {second_line("Mexico", std::string(4096, 'x')), "file:2:4097: the line is longer than 4096 bytes"},
      {std::string(100'000, 'x'), "file:1:4097: the line is longer than 4096 bytes"},
  };
  for (const auto& [bytes, message] : cases) EXPECT_THAT(Error(bytes), StartsWith(message));
}

// Whatever a file holds, it is read or refused.
TEST(ParseCensus, DamagedFilesGiveATableOrAPlace) {
  const std::string good = Lines({"|1x3 Cross validator", kPerson, kOther, kPerson, kOther}, "\r\n");
  int refused = 0, read = 0;
  for (uint64_t seed = 0; seed < 20'000; ++seed) {
    RandomStream random(seed);
    std::string bytes =
        good.substr(0, random.NextBelow(4) == 0 ? random.NextBelow(good.size()) : good.size());
    const uint64_t changes = random.NextBelow(4);
    for (uint64_t i = 0; i < changes && !bytes.empty(); ++i) {
      constexpr std::string_view kCharacters = ",\n\r|.? \t0\xff";
      const size_t at = random.NextBelow(bytes.size());
      switch (random.NextBelow(3)) {
        case 0:
          bytes[at] = static_cast<char>(random.NextBelow(256));
          break;
        case 1:
          bytes[at] = kCharacters[random.NextBelow(kCharacters.size())];
          break;
        default:
          bytes.insert(at, bytes.substr(random.NextBelow(bytes.size()), random.NextBelow(200)));
      }
    }
    const auto dataset = ParseCensus(bytes, "file");
    if (dataset.ok()) {
      ++read;
      ExpectConsistent(*dataset);
    } else {
      ++refused;
      ASSERT_EQ(dataset.status().code(), absl::StatusCode::kInvalidArgument) << seed;
      ASSERT_THAT(std::string(dataset.status().message()), ::testing::ContainsRegex("^file:[0-9]+:[0-9]+: "))
          << seed;
    }
  }
  // Both happen, or this looks at nothing.
  EXPECT_GT(read, 1000);
  EXPECT_GT(refused, 1000);
}

class LoadCensusTest : public ::testing::Test {
 protected:
  LoadCensusTest() { EXPECT_TRUE(MakeDirectories(folder_.path() / "census").ok()); }
  std::string Path(const std::string& name) const { return (folder_.path() / "census" / name).string(); }
  void Write(const std::string& name, const std::string& bytes) {
    ASSERT_TRUE(WriteFileAtomically(Path(name), bytes).ok());
  }
  TemporaryDirectory folder_;
};

TEST_F(LoadCensusTest, ReadsPlainAndPackedFiles) {
  EXPECT_EQ(LoadCensus(folder_.path()).status().code(), absl::StatusCode::kNotFound);
  Write("adult.data", Lines({kPerson, kOther}));
  const absl::Status missing = LoadCensus(folder_.path()).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("neither adult.test nor adult.test.gz"));
  Write("adult.test.gz", Gzip(Lines({"|comment", kOther})));
  const auto census = LoadCensus(folder_.path());
  ASSERT_TRUE(census.ok()) << census.status();
  EXPECT_EQ(census->train.size(), 2);
  EXPECT_THAT(census->test.labels, ElementsAre(1));

  Write("adult.test.gz", Gzip(Lines({kOther, "1"})));
  EXPECT_THAT(std::string(LoadCensus(folder_.path()).status().message()),
              StartsWith(Path("adult.test.gz") + ":2:2: 1 fields"));
  Write("adult.test.gz", Gzip(Lines({kOther})).substr(0, 40));
  EXPECT_THAT(std::string(LoadCensus(folder_.path()).status().message()),
              StartsWith(Path("adult.test.gz") + ": byte 40: the gzip data is truncated"));
}

TEST(LoadCensus, ReadsTheRealSet) {
  const char* const folder = std::getenv("MUSTER_DATA");
  if (folder == nullptr)
    GTEST_SKIP() << "MUSTER_DATA does not name a folder with the real data set (census/)";
  const auto census = LoadCensus(folder);
  ASSERT_TRUE(census.ok()) << census.status();
  ExpectConsistent(census->train);
  ExpectConsistent(census->test);
  const auto positive = [](const CensusDataset& dataset) {
    return std::accumulate(dataset.labels.begin(), dataset.labels.end(), 0);
  };
  // The counts that adult.names gives.
  EXPECT_EQ(census->train.size(), 32'561);
  EXPECT_EQ(positive(census->train), 7'841);
  EXPECT_EQ(census->test.size(), 16'281);
  EXPECT_EQ(positive(census->test), 3'846);
  const std::vector<std::pair<std::string, size_t>> categories = {
      {"workclass", 9},    {"education", 16}, {"marital_status", 7}, {"occupation", 15},
      {"relationship", 6}, {"race", 5},       {"gender", 2},         {"native_country", 42}};
  for (const auto& [name, size] : categories) {
    EXPECT_EQ(census->train.table.FindStrings(name)->dictionary.size(), size) << name;
  }
}

}  // namespace
}  // namespace muster
