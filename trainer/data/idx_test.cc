#include "trainer/data/idx.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/file.h"
#include "base/gzip.h"
#include "trainer/data/mnist.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string BigEndian32(uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

std::string Idx(const std::vector<uint32_t>& shape, const std::string& values) {
  std::string bytes{'\0', '\0', '\x08', static_cast<char>(shape.size())};
  for (const uint32_t dimension : shape) bytes += BigEndian32(dimension);
  return bytes + values;
}

std::string Values(size_t size) {
  std::string values;
  for (size_t i = 0; i < size; ++i) values += static_cast<char>(i * 7919 >> 3);
  return values;
}

class IdxTest : public ::testing::Test {
 protected:
  absl::StatusOr<IdxArray> Read(const std::string& bytes, int dimensions) {
    const std::filesystem::path path = folder_.path() / "file";
    std::ofstream(path, std::ios::binary) << bytes;
    return ReadIdxFile(path, dimensions);
  }
  std::string ErrorOf(const std::string& bytes, int dimensions) {
    const absl::Status status = Read(bytes, dimensions).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr((folder_.path() / "file").string()));
    return std::string(status.message());
  }
  TemporaryDirectory folder_;
};

TEST_F(IdxTest, ReadsPlainAndPacked) {
  const std::string values = Values(200'000);
  const std::string bytes = Idx({1000, 20, 10}, values);
  for (const std::string& file : {bytes, Gzip(bytes)}) {
    const absl::StatusOr<IdxArray> array = Read(file, 3);
    ASSERT_TRUE(array.ok()) << array.status();
    EXPECT_THAT(array->shape, ElementsAre(1000, 20, 10));
    EXPECT_EQ(std::string(array->values.begin(), array->values.end()), values);
  }
}

TEST_F(IdxTest, RefusesDamageWithTheOffset) {
  const std::string good = Idx({2, 3}, "abcdef");
  const auto with = [&](size_t offset, char value) {
    std::string bytes = good;
    bytes[offset] = value;
    return bytes;
  };
  const struct {
    std::string bytes;
    std::string offset;
    std::string reason;
  } kCases[] = {
      {"", "byte 0:", "ends here"},
      {good.substr(0, 11), "byte 11:", "ends here"},
      {with(0, 1), "byte 0:", "not an IDX file"},
      {with(1, 1), "byte 1:", "not an IDX file"},
      {with(2, 0x0d), "byte 2:", "type 0x0d"},
      {with(3, 3), "byte 3:", "3 dimensions where 2"},
      {good.substr(0, 17), "byte 17:", "truncated; 1 bytes are missing"},
      {good + "g", "byte 18:", "1 bytes after the last"},
      {with(8, '\x7f'), "byte 8:", "larger than"},
      {Idx({0xffffffff, 0xffffffff}, ""), "byte 4:", "larger than"},
      {"<!DOCTYPE html> not found", "byte 0:", "not an IDX file"},
  };
  for (const auto& test : kCases) {
    EXPECT_THAT(ErrorOf(test.bytes, 2), ::testing::AllOf(HasSubstr(test.offset), HasSubstr(test.reason)));
  }
}

TEST_F(IdxTest, RefusesDamagedGzip) {
  const std::string packed = Gzip(Idx({100'000}, Values(100'000)));
  const size_t half = packed.size() / 2;
  EXPECT_THAT(ErrorOf(packed.substr(0, half), 1),
              ::testing::AllOf(HasSubstr(absl::StrFormat("byte %d:", half)), HasSubstr("truncated")));
  EXPECT_THAT(ErrorOf(packed.substr(0, packed.size() - 1), 1), HasSubstr("truncated"));
  EXPECT_THAT(ErrorOf(packed.substr(0, 2), 1),
              ::testing::AllOf(HasSubstr("byte 2:"), HasSubstr("truncated")));
  EXPECT_THAT(ErrorOf(packed + "tail", 1),
              ::testing::AllOf(HasSubstr(absl::StrFormat("byte %d:", packed.size())),
                               HasSubstr("4 bytes after the end")));
  std::string wrong_checksum = packed;
  wrong_checksum[packed.size() - 8] ^= 1;
  EXPECT_THAT(ErrorOf(wrong_checksum, 1), HasSubstr("incorrect data check"));
  EXPECT_THAT(ErrorOf(Gzip(Idx({5}, "abcd")), 1),
              ::testing::AllOf(HasSubstr("(unpacked)"), HasSubstr("byte 12:"), HasSubstr("truncated")));
}

// As bgzip and `cat a.gz b.gz` make them.
TEST_F(IdxTest, ReadsGzipOfSeveralMembers) {
  const std::string bytes = Idx({100'000}, Values(100'000));
  std::string packed;
  for (size_t at = 0; at < bytes.size(); at += 30'000) packed += Gzip(bytes.substr(at, 30'000));
  const absl::StatusOr<IdxArray> array = Read(packed, 1);
  ASSERT_TRUE(array.ok()) << array.status();
  EXPECT_EQ(array->values, Read(Gzip(bytes), 1)->values);
  EXPECT_THAT(ErrorOf(packed + "tail", 1),
              ::testing::AllOf(HasSubstr(absl::StrFormat("byte %d:", packed.size())),
                               HasSubstr("4 bytes after the end")));
  EXPECT_THAT(
      ErrorOf(packed.substr(0, packed.size() - 1), 1),
      ::testing::AllOf(HasSubstr(absl::StrFormat("byte %d:", packed.size() - 1)), HasSubstr("truncated")));
}

TEST_F(IdxTest, OneWrongBitInGzipNeverGivesOtherValues) {
  const std::string bytes = Idx({300}, Values(300));
  const std::string packed = Gzip(bytes);
  const absl::StatusOr<IdxArray> good = Read(packed, 1);
  ASSERT_TRUE(good.ok());
  for (size_t bit = 0; bit < packed.size() * 8; ++bit) {
    std::string damaged = packed;
    damaged[bit / 8] ^= static_cast<char>(1 << bit % 8);
    const absl::StatusOr<IdxArray> array = Read(damaged, 1);
    if (array.ok()) {  // e.g. the time stamp in the header
      EXPECT_EQ(array->values, good->values) << "bit " << bit;
    }
  }
}

TEST_F(IdxTest, MissingFileIsNotFound) {
  EXPECT_EQ(ReadIdxFile(folder_.path() / "none", 1).status().code(), absl::StatusCode::kNotFound);
}

class LoadMnistTest : public ::testing::Test {
 protected:
  LoadMnistTest() {
    EXPECT_TRUE(MakeDirectories(folder_.path() / "mnist").ok());
    Write("train-images-idx3-ubyte", Idx({3, 28, 28}, Values(3 * 784)));
    Write("train-labels-idx1-ubyte.gz", Gzip(Idx({3}, {0, 9, 4})));
    Write("t10k-images-idx3-ubyte.gz", Gzip(Idx({1, 28, 28}, Values(784))));
    Write("t10k-labels-idx1-ubyte", Idx({1}, {7}));
  }
  void Write(const std::string& name, const std::string& bytes) {
    ASSERT_TRUE(WriteFileAtomically(folder_.path() / "mnist" / name, bytes).ok());
  }
  std::string Error() {
    const absl::Status status = LoadMnist(folder_.path()).status();
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  }
  TemporaryDirectory folder_;
};

TEST_F(LoadMnistTest, ReadsPackedAndUnpackedFiles) {
  const absl::StatusOr<TrainTestData> mnist = LoadMnist(folder_.path());
  ASSERT_TRUE(mnist.ok()) << mnist.status();
  EXPECT_THAT(mnist->train.labels, ElementsAre(0, 9, 4));
  EXPECT_EQ(mnist->test.size(), 1);
  EXPECT_EQ(mnist->train.sample_bytes(2)[5], static_cast<uint8_t>(Values(3 * 784)[2 * 784 + 5]));
}

TEST_F(LoadMnistTest, RefusesPartsThatDoNotFit) {
  const struct {
    std::string name, bytes, error;
  } kCases[] = {
      {"train-images-idx3-ubyte", Idx({0, 28, 28}, ""), "train-images-idx3-ubyte: byte 4: no images"},
      {"train-images-idx3-ubyte", Idx({3, 32, 28}, Values(3 * 32 * 28)), "byte 8: images of 32x28"},
      {"train-images-idx3-ubyte", Idx({3, 28, 27}, Values(3 * 27 * 28)), "byte 12: images of 28x27"},
      {"train-labels-idx1-ubyte", Idx({2}, {1, 2}),
       "train-labels-idx1-ubyte: byte 4: 2 labels for the 3 images"},
      {"train-labels-idx1-ubyte", Idx({3}, {1, 2, 10}), "train-labels-idx1-ubyte: byte 10: label 10"},
      {"train-labels-idx1-ubyte", Idx({3, 28, 28}, Values(3 * 784)), "byte 3: 3 dimensions where 1"},
  };
  for (const auto& test : kCases) {
    const std::filesystem::path path = folder_.path() / "mnist" / test.name;
    const absl::StatusOr<std::string> saved = ReadFile(path);
    Write(test.name, test.bytes);
    EXPECT_THAT(Error(), HasSubstr(test.error));
    ASSERT_TRUE(saved.ok() ? WriteFileAtomically(path, *saved).ok() : RemoveTree(path).ok());
  }
}

TEST_F(LoadMnistTest, NamesTheMissingFile) {
  ASSERT_TRUE(RemoveTree(folder_.path() / "mnist" / "t10k-labels-idx1-ubyte").ok());
  EXPECT_EQ(LoadMnist(folder_.path()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Error(), HasSubstr("neither t10k-labels-idx1-ubyte nor t10k-labels-idx1-ubyte.gz"));
}

}  // namespace
}  // namespace muster
