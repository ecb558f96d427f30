#include "trainer/data/synthetic_census.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/random.h"

namespace muster {
namespace {

// A value and how often it comes, in parts of the sum of its table.
struct Weighted {
  const char* value;
  int weight;
};

constexpr Weighted kWorkclasses[] = {
    {"Private", 700},    {"Self-emp-not-inc", 78}, {"Local-gov", 64},
    {"?", 56},           {"State-gov", 40},        {"Self-emp-inc", 34},
    {"Federal-gov", 26}, {"Without-pay", 1},       {"Never-worked", 1},
};

// In order of education_num, which counts from 1.
constexpr Weighted kEducations[] = {
    {"Preschool", 2},   {"1st-4th", 5},        {"5th-6th", 10},     {"7th-8th", 20},
    {"9th", 16},        {"10th", 29},          {"11th", 36},        {"12th", 13},
    {"HS-grad", 323},   {"Some-college", 224}, {"Assoc-voc", 42},   {"Assoc-acdm", 33},
    {"Bachelors", 164}, {"Masters", 53},       {"Prof-school", 18}, {"Doctorate", 12},
};
constexpr int64_t kSomeCollege = 10;

// Those in an office first.
constexpr Weighted kOccupations[] = {
    {"Prof-specialty", 127},  {"Exec-managerial", 125},  {"Adm-clerical", 116},
    {"Sales", 112},           {"Tech-support", 29},      {"Craft-repair", 126},
    {"Other-service", 101},   {"Machine-op-inspct", 61}, {"?", 57},
    {"Transport-moving", 49}, {"Handlers-cleaners", 42}, {"Farming-fishing", 31},
    {"Protective-serv", 20},  {"Priv-house-serv", 4},    {"Armed-Forces", 1},
};
constexpr int64_t kOfficeOccupations = 5;

constexpr Weighted kUnmarriedStatuses[] = {
    {"Never-married", 610},        {"Divorced", 253}, {"Separated", 58}, {"Widowed", 56},
    {"Married-spouse-absent", 23},
};
constexpr Weighted kUnmarriedRelationships[] = {
    {"Not-in-family", 466},
    {"Own-child", 285},
    {"Unmarried", 194},
    {"Other-relative", 55},
};
constexpr Weighted kRaces[] = {
    {"White", 854}, {"Black", 96}, {"Asian-Pac-Islander", 32}, {"Amer-Indian-Eskimo", 10}, {"Other", 8},
};
constexpr Weighted kCountries[] = {
    {"United-States", 900}, {"Mexico", 20}, {"?", 18},    {"Philippines", 6}, {"Germany", 5}, {"Canada", 5},
    {"Puerto-Rico", 5},     {"India", 5},   {"China", 5}, {"England", 5},     {"Cuba", 5},    {"Jamaica", 5},
    {"Italy", 5},           {"Poland", 4},  {"Japan", 4}, {"Vietnam", 3},
};

template <size_t size>
int64_t Pick(RandomStream& random, const Weighted (&table)[size]) {
  int sum = 0;
  for (const Weighted& entry : table) sum += entry.weight;
  auto left = static_cast<int>(random.NextBelow(sum));
  int64_t index = 0;
  while (left >= table[index].weight) left -= table[index++].weight;
  return index;
}

bool Chance(RandomStream& random, int percent) {
  return random.NextBelow(100) < static_cast<uint64_t>(percent);
}

int64_t Between(RandomStream& random, int64_t low, int64_t high) {
  return low + static_cast<int64_t>(random.NextBelow(high - low + 1));
}

// Appends one line, up to the label, and says what the label is.
bool AppendPerson(RandomStream& random, std::string* out) {
  const int64_t age = std::min(Between(random, 17, 76), Between(random, 17, 76));
  const int64_t workclass = Pick(random, kWorkclasses);
  const int64_t weight = Between(random, 20'000, 400'000);
  const int64_t education = Pick(random, kEducations);
  const bool married = Chance(random, age < 25 ? 15 : 55);
  const int64_t occupation = Pick(random, kOccupations);
  const bool male = Chance(random, 67);
  const int64_t status = Pick(random, kUnmarriedStatuses);
  const int64_t relationship = Pick(random, kUnmarriedRelationships);
  const int64_t race = Pick(random, kRaces);
  const int64_t gain = Chance(random, 8) ? Between(random, 1, 150) * 100 : 0;
  const int64_t loss = Chance(random, 5) ? Between(random, 15, 25) * 100 : 0;
  const int64_t hours = Chance(random, 47) ? 40 : Between(random, 10, 70);
  const int64_t country = Pick(random, kCountries);

  const bool college = education + 1 >= kSomeCollege;
  const bool office = occupation < kOfficeOccupations;
  const bool middle = age >= 35 && age < 50;
  const bool odd = college ^ office ^ middle;
  const int64_t points = (odd ? 10 : 0) + (married ? 6 : 0) + (hours >= 45 ? 2 : 0) + (gain >= 5000 ? 4 : 0) +
                         Between(random, 0, 4) + Between(random, 0, 4);
  constexpr int64_t kEnough = 17;

  const auto add = [&](const std::string& field) { *out += field + ", "; };
  add(std::to_string(age));
  add(kWorkclasses[workclass].value);
  add(std::to_string(weight));
  add(kEducations[education].value);
  add(std::to_string(education + 1));
  add(married ? "Married-civ-spouse" : kUnmarriedStatuses[status].value);
  add(kOccupations[occupation].value);
  add(!married ? kUnmarriedRelationships[relationship].value : male ? "Husband" : "Wife");
  add(kRaces[race].value);
  add(male ? "Male" : "Female");
  add(std::to_string(gain));
  add(std::to_string(loss));
  add(std::to_string(hours));
  add(kCountries[country].value);
  return points >= kEnough;
}

// Like UCI's, a file ends in an empty line.
std::string MakeFile(uint64_t seed, int64_t size, const std::string& first_line,
                     const std::string& label_end) {
  std::string text = first_line;
  for (int64_t i = 0; i < size; ++i) {
    RandomStream random(seed, static_cast<uint64_t>(i));
    const bool rich = AppendPerson(random, &text);
    text += (rich ? ">50K" : "<=50K") + label_end + "\n";
  }
  return text + "\n";
}

}  // namespace

CensusFiles MakeSyntheticCensusFiles(uint64_t seed, int64_t train_size, int64_t test_size) {
  RandomStream seeds(seed);
  const uint64_t train_seed = seeds.Next(), test_seed = seeds.Next();
  return {.train = MakeFile(train_seed, train_size, "", ""),
          .test = MakeFile(test_seed, test_size, "|muster's synthetic census\n", ".")};
}

Census MakeSyntheticCensus(uint64_t seed, int64_t train_size, int64_t test_size) {
  const CensusFiles files = MakeSyntheticCensusFiles(seed, train_size, test_size);
  auto train = ParseCensus(files.train, "adult.data"), test = ParseCensus(files.test, "adult.test");
  MUSTER_CHECK(train.ok() && test.ok(), "the synthetic census cannot be read");
  return {.train = *std::move(train), .test = *std::move(test)};
}

}  // namespace muster
