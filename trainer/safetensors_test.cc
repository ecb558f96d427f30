#include "trainer/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/file.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

// A file with this header, and `data_bytes` bytes after it.
std::string File(const std::string& header, size_t data_bytes) {
  const uint64_t size = header.size();
  std::string bytes(sizeof size, '\0');
  std::memcpy(bytes.data(), &size, sizeof size);
  return bytes + header + std::string(data_bytes, '\1');
}

std::string Entry(const std::string& shape, const std::string& offsets, const std::string& dtype = "F32") {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

std::string ParseError(std::string bytes) {
  const absl::Status status = SafetensorsFile::Parse(std::move(bytes), "x").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

ParameterLayout Layout(const std::vector<TensorSpec>& tensors) { return *ParameterLayout::Create(tensors); }

absl::StatusOr<FlatBuffer> Parameters(const SafetensorsFile& file, const ParameterLayout& layout) {
  FlatBuffer parameters(layout.size());
  MUSTER_RETURN_IF_ERROR(file.CopyTo(ViewTensors(layout, parameters.values())));
  return parameters;
}

const std::vector<TensorSpec> kTensors = {{.name = "w", .shape = {3, 7}}, {.name = "b", .shape = {7}}};

TEST(Safetensors, WhatIsSavedIsReadInItsPlaces) {
  const ParameterLayout layout = Layout(kTensors);
  std::vector<float> parameters(layout.size());
  for (const LayoutTensor& tensor : layout.tensors()) {
    for (int64_t i = 0; i < tensor.size; ++i)
      parameters[tensor.offset + i] = static_cast<float>(tensor.offset + i + 1);
  }
  const TemporaryDirectory folder;
  const std::filesystem::path path = folder.path() / "model";
  ASSERT_TRUE(SaveSafetensors(path, ViewTensors(layout, std::span<const float>(parameters)),
                              {{"model", "m"}, {"hidden", ""}})
                  .ok());

  const auto file = SafetensorsFile::Read(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_THAT(file->metadata(), UnorderedElementsAre(Pair("model", "m"), Pair("hidden", "")));
  const auto read = Parameters(*file, layout);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_TRUE(std::ranges::equal(read->values(), parameters));
  // The order of the tensors in the file is its own.
  const auto other = Parameters(*file, Layout({kTensors[1], kTensors[0]}));
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->values()[0], parameters[layout.tensors()[1].offset]);
}

// A header of more than a MiB.
TEST(Safetensors, WhatIsSavedIsReadAlsoWhereItHasManyTensors) {
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < 12'000; ++i)
    tensors.push_back({.name = absl::StrFormat("hidden_%d", i), .shape = {1, 1}});
  const ParameterLayout layout = Layout(tensors);
  std::vector<float> parameters(layout.size());
  for (size_t i = 0; i < tensors.size(); ++i) parameters[layout.tensors()[i].offset] = static_cast<float>(i);
  const TemporaryDirectory folder;
  const std::filesystem::path path = folder.path() / "model";
  ASSERT_TRUE(SaveSafetensors(path, ViewTensors(layout, std::span<const float>(parameters)), {}).ok());
  const auto file = SafetensorsFile::Read(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(std::ranges::equal(Parameters(*file, layout)->values(), parameters));
}

TEST(Safetensors, TensorsThatAreNotTheModelsAreNamed) {
  const TemporaryDirectory folder;
  const std::filesystem::path path = folder.path() / "model";
  const ParameterLayout layout = Layout(kTensors);
  const std::vector<float> zeros(layout.size());
  ASSERT_TRUE(SaveSafetensors(path, ViewTensors(layout, std::span(zeros)), {}).ok());
  const auto file = SafetensorsFile::Read(path);
  const auto error = [&](const std::vector<TensorSpec>& tensors) {
    const absl::Status status = Parameters(*file, Layout(tensors)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  const std::string name = path.string();
  EXPECT_EQ(error({kTensors[0]}), name + ": tensor \"b\" is none of the model's");
  EXPECT_EQ(error({kTensors[0], kTensors[1], {.name = "c", .shape = {2, 4}}}),
            name + ": tensor \"c\" of shape [2,4] is missing");
  EXPECT_EQ(error({kTensors[1], {.name = "w", .shape = {7, 3}}}),
            name + ": tensor \"w\": expected the shape [7,3], found [3,7]");
}

TEST(Safetensors, WhatIsNotSoundIsRefusedWithItsPlace) {
  const std::string a = R"("a":)", b = R"(,"b":)";
  EXPECT_TRUE(SafetensorsFile::Parse(File("{" + a + Entry("[1]", "[0,4]") + "}  ", 4), "x").ok());

  EXPECT_EQ(ParseError(""), "x: 0 bytes are no safetensors file");
  EXPECT_EQ(ParseError("1234567"), "x: 7 bytes are no safetensors file");
  EXPECT_THAT(ParseError(std::string(100, 'x')), HasSubstr("a header of 8680820740569200760 bytes"));
  EXPECT_THAT(ParseError(std::string("\x01\xe1\xf5\x05\0\0\0\0", 8)),
              HasSubstr("a header of 100000001 bytes; at most 100000000 are read"));
  EXPECT_EQ(ParseError(File("{}", 0).substr(0, 9)), "x: truncated: 9 bytes with a header of 2");
  for (const std::string header : {"", " {}", "[]", "{", "{}}", "null", "{\"a\":\"\xff\"}"}) {
    EXPECT_EQ(ParseError(File(header, 0)), "x: the header is no JSON object") << header;
  }
  EXPECT_EQ(ParseError(File("{" + a + Entry("[1]", "[0,4]") + "," + a + Entry("[1]", "[0,4]") + "}", 4)),
            "x: the header has \"a\" twice");
  EXPECT_EQ(ParseError(File(R"({"__metadata__":{"model":"a","model":"b"}})", 0)),
            "x: the header has \"model\" twice");
  EXPECT_EQ(ParseError(File(R"({"__metadata__":{"steps":1}})", 0)),
            "x: __metadata__ is no object of strings");

  const auto entry_error = [&](const std::string& entry, size_t data_bytes = 4) {
    return ParseError(File("{" + a + entry + "}", data_bytes));
  };
  for (const std::string entry : {"1", "{}", R"({"dtype":"F32","shape":[1]})",
                                  R"({"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":1})"}) {
    EXPECT_EQ(entry_error(entry), "x: tensor \"a\": expected an object of dtype, shape and data_offsets");
  }
  EXPECT_EQ(entry_error(Entry("[2]", "[0,4]", "F16")),
            "x: tensor \"a\": expected dtype \"F32\", found \"F16\"");
  for (const std::string shape : {"1", "[-1]", "[1.0]", "[\"1\"]", "[9223372036854775808]"}) {
    EXPECT_EQ(entry_error(Entry(shape, "[0,4]")), "x: tensor \"a\": expected a shape, found " + shape);
  }
  for (const std::string offsets : {"4", "[0]", "[0,4,8]", "[4,0]", "[0,5]", "[-4,0]", "[0.0,4]"}) {
    EXPECT_EQ(
        entry_error(Entry("[1]", offsets)),
        "x: tensor \"a\": expected two data_offsets within the 4 bytes after the header, found " + offsets);
  }
  EXPECT_EQ(entry_error(Entry("[2]", "[0,4]")), "x: tensor \"a\": 4 bytes do not fit its shape [2]");
  EXPECT_EQ(entry_error(Entry("[1]", "[0,3]")), "x: tensor \"a\": 3 bytes do not fit its shape [1]");
  // 2^62 floats are 2^64 bytes, which would be 0 if it wrapped.
  EXPECT_EQ(entry_error(Entry("[4611686018427387904]", "[0,0]"), 0),
            "x: tensor \"a\": 0 bytes do not fit its shape [4611686018427387904]");

  const auto two = [&](const std::string& first, const std::string& second, size_t data_bytes) {
    return ParseError(File("{" + a + first + b + second + "}", data_bytes));
  };
  EXPECT_EQ(two(Entry("[2]", "[0,8]"), Entry("[1]", "[4,8]"), 8),
            "x: tensor \"b\": starts at offset 4, but what is before it ends at 8");
  EXPECT_EQ(two(Entry("[1]", "[8,12]"), Entry("[1]", "[0,4]"), 12),
            "x: tensor \"a\": starts at offset 8, but what is before it ends at 4");
  EXPECT_EQ(entry_error(Entry("[1]", "[0,4]"), 6), "x: 2 bytes after the last tensor");
}

// JSON of any depth would be written into the message by recursion, which ends the stack.
TEST(Safetensors, NothingNestedDeeperThanItsPartsAreIsKept) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  for (const size_t depth : {size_t{2}, size_t{100'000}}) {
    const std::string lists = nested(depth);
    for (const std::string& header :
         {R"({"a":{"dtype":)" + lists + R"(,"shape":[1],"data_offsets":[0,4]}})",
          "{\"a\":" + Entry(lists, "[0,4]") + "}", "{\"a\":" + Entry("[1]", lists) + "}",
          R"({"__metadata__":{"model":)" + lists + "}}",
          R"({"__metadata__":{"model":{"m":{"m":1,"m":)" + lists + "}}}}"}) {
      EXPECT_EQ(ParseError(File(header, 4)), "x: the header nests deeper than 3");
    }
  }
  for (const std::string objects : {R"({"a":)", R"([{"a":)"}) {
    std::string header = R"({"a":)";
    for (int i = 0; i < 50'000; ++i) header += objects;
    EXPECT_EQ(ParseError(File(header, 4)), "x: the header nests deeper than 3");  // none of them ends
  }
  EXPECT_EQ(ParseError(File(R"({"__metadata__":{"model":[]}})", 4)),
            "x: __metadata__ is no object of strings");
}

TEST(Safetensors, WhatMessagesShowOfAFileIsShortAndEscaped) {
  // "\u001b" and "\u009b" begin a command to a terminal.
  const std::string name = R"(\u001b[2J\u009b)";
  const std::string good = Entry("[1]", "[0,4]");
  EXPECT_EQ(ParseError(File("{\"" + name + "\":" + good + ",\"" + name + "\":" + good + "}", 4)),
            R"(x: the header has "\033[2J\302\233" twice)");
  EXPECT_EQ(ParseError(File("{\"" + name + "\":1}", 4)),
            R"(x: tensor "\033[2J\302\233": expected an object of dtype, shape and data_offsets)");
  EXPECT_EQ(ParseError(File("{\"a\":" + Entry("[1]", "[0,4]", name + R"(\u007f)") + "}", 4)),
            R"(x: tensor "a": expected dtype "F32", found "\u001b[2J\u009b\u007f")");
  const auto file = SafetensorsFile::Parse(
      File("{\"a\":" + good + ",\"" + name + "\":" + Entry("[1]", "[4,8]") + "}", 8), "x");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(Parameters(*file, Layout({{.name = "a", .shape = {1}}})).status().message(),
            R"(x: tensor "\033[2J\302\233" is none of the model's)");

  const std::string text(100'000, 'b');
  std::string sizes = "[1";
  for (int i = 0; i < 100'000; ++i) sizes += ",1";
  sizes += "]";
  for (const std::string& header :
       {"{\"" + text + "\":1}", "{\"a\":" + Entry("[1]", "[0,4]", text) + "}",
        "{\"a\":" + Entry("\"" + text + "\"", "[0,4]") + "}", "{\"a\":" + Entry("[1]", sizes) + "}",
        "{\"a\":" + Entry(sizes, "[0,3]") + "}"}) {
    const std::string message = ParseError(File(header, 4));
    EXPECT_THAT(message, HasSubstr("..."));
    EXPECT_LT(message.size(), 250u);
  }
}

// What the sanitizers watch: every short file and every changed byte of a header is read to its end or
// refused.
TEST(Safetensors, NoDamageIsReadAsSomethingElse) {
  const std::string whole = File(
      "{" + std::string(R"("a":)") + Entry("[3,2]", "[0,24]") + R"(,"b":)" + Entry("[1]", "[24,28]") + "}",
      28);
  const ParameterLayout layout = Layout({{.name = "a", .shape = {3, 2}}, {.name = "b", .shape = {1}}});
  ASSERT_TRUE(Parameters(*SafetensorsFile::Parse(whole, "x"), layout).ok());
  for (size_t size = 0; size < whole.size(); ++size) ParseError(whole.substr(0, size));
  const std::vector<float> values(7, 2.3694278e-38f);  // four bytes of 1
  int refused = 0;
  for (size_t at = 0; at < whole.size() - 28; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      const auto file = SafetensorsFile::Parse(damaged, "x");
      const auto parameters =
          file.ok() ? Parameters(*file, layout) : absl::StatusOr<FlatBuffer>(file.status());
      if (!parameters.ok()) {
        ++refused;
        continue;
      }
      // A tab for a space at most: the same tensors.
      EXPECT_EQ(parameters->values()[0], values[0]) << "byte " << at << " bit " << bit;
    }
  }
  EXPECT_GT(refused, 500);
}

// A flipped bit of a tensor is a value like others, and one of the metadata may be another number of steps.
TEST(Safetensors, TheChecksumCoversAllOfAFile) {
  const TemporaryDirectory folder;
  const std::filesystem::path path = folder.path() / "model";
  const ParameterLayout layout = Layout(kTensors);
  const std::vector<float> ones(layout.size(), 1.0f);
  ASSERT_TRUE(SaveSafetensors(path, ViewTensors(layout, std::span(ones)), {{"steps", "20"}}).ok());
  const std::string whole = *ReadFile(path);
  const size_t key = whole.find("file_crc32c");
  ASSERT_NE(key, whole.npos);
  ASSERT_TRUE(SafetensorsFile::Parse(whole, "x").ok());
  for (size_t at = 0; at < whole.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << bit));
      const bool is_in_key = at >= key && at < key + strlen("file_crc32c");  // by another name it is none
      EXPECT_TRUE(is_in_key || !SafetensorsFile::Parse(damaged, "x").ok()) << "byte " << at << " bit " << bit;
    }
  }
  std::string damaged = whole;
  damaged.back() ^= 1;
  EXPECT_THAT(ParseError(damaged), HasSubstr("x: damaged: its checksum is not the \""));
  damaged.replace(key, strlen("file_crc32c"), "gone_crc32c");
  EXPECT_TRUE(SafetensorsFile::Parse(damaged, "x").ok()) << "written by another program";
}

}  // namespace
}  // namespace muster
