#include "trainer/data/make_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "trainer/data/census.h"
#include "trainer/data/mnist.h"
#include "trainer/data/synthetic_census.h"
#include "trainer/data/synthetic_digits.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

class WriteSyntheticDataTest : public ::testing::Test {
 protected:
  std::filesystem::path Path(const std::string& name) const { return folder_.path() / "data" / name; }
  absl::Status Write(const std::string& kind) {
    return WriteSyntheticData(kind, folder_.path() / "data").status();
  }
  void ExpectRefused(const std::string& kind, const std::string& message) {
    const absl::Status status = Write(kind);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
  TemporaryDirectory folder_;
};

TEST_F(WriteSyntheticDataTest, WritesTheDigitsThatATrainingWithoutDataMakes) {
  ASSERT_TRUE(Write("mnist").ok());
  const auto read = LoadMnist(folder_.path() / "data");
  ASSERT_TRUE(read.ok()) << read.status();
  const TrainTestData made = MakeSyntheticMnist(kSyntheticDataSeed);
  EXPECT_EQ(read->train.bytes, made.train.bytes);
  EXPECT_EQ(read->train.labels, made.train.labels);
  EXPECT_EQ(read->test.bytes, made.test.bytes);
  EXPECT_EQ(read->test.labels, made.test.labels);
}

TEST_F(WriteSyntheticDataTest, WritesTheCensus) {
  const auto paths = WriteSyntheticData("census", folder_.path() / "data");
  ASSERT_TRUE(paths.ok()) << paths.status();
  EXPECT_THAT(*paths, ::testing::ElementsAre(Path("census/adult.data"), Path("census/adult.test")));
  const auto read = LoadCensus(folder_.path() / "data");
  ASSERT_TRUE(read.ok()) << read.status();
  const Census made = MakeSyntheticCensus(kSyntheticDataSeed);
  EXPECT_EQ(read->train.labels, made.train.labels);
  EXPECT_EQ(read->test.labels, made.test.labels);
}

TEST_F(WriteSyntheticDataTest, LeavesFilesThatAreThereUntouched) {
  ASSERT_TRUE(Write("census").ok());
  const std::filesystem::path file = Path("census/adult.data");
  const auto time = std::filesystem::file_time_type::clock::now() - std::chrono::hours(1);
  std::filesystem::last_write_time(file, time);
  ASSERT_TRUE(std::filesystem::remove(Path("census/adult.test")));
  ASSERT_TRUE(Write("census").ok());
  EXPECT_EQ(std::filesystem::last_write_time(file), time);
  EXPECT_TRUE(std::filesystem::exists(Path("census/adult.test")));
}

TEST_F(WriteSyntheticDataTest, OverwritesNothing) {
  ASSERT_TRUE(MakeDirectories(Path("census")).ok());
  const auto write = [&](const std::string& name, const std::string& bytes) {
    ASSERT_TRUE(WriteFileAtomically(Path(name), bytes).ok());
  };
  for (const std::string& bytes : {std::string("39, State-gov"), std::string(4'000'000, 'x')}) {
    write("census/adult.test", bytes);
    ExpectRefused("census", Path("census/adult.test").string() + " is there already and is something else");
    EXPECT_EQ(ReadFile(Path("census/adult.test")).value_or(""), bytes);
    EXPECT_FALSE(std::filesystem::exists(Path("census/adult.data")));
  }
  ASSERT_TRUE(MakeDirectories(Path("mnist")).ok());
  write("mnist/t10k-labels-idx1-ubyte.gz", "packed");
  ExpectRefused("mnist",
                Path("mnist/t10k-labels-idx1-ubyte.gz").string() + " is there already, and would be");
  EXPECT_FALSE(std::filesystem::exists(Path("mnist/train-images-idx3-ubyte")));
}

TEST_F(WriteSyntheticDataTest, RefusesOtherKinds) {
  const absl::Status status = Write("cifar");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"cifar\": mnist, census"));
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "data"));
}

}  // namespace
}  // namespace muster
