#include "trainer/load_data.h"

#include <bit>

#include "base/crc32c.h"
#include "trainer/data/make_data.h"
#include "trainer/data/mnist.h"
#include "trainer/data/synthetic_digits.h"

namespace muster {

static_assert(std::endian::native == std::endian::little, "the checksum is of numbers as they lie in memory");

std::string DataSetName(const std::string& folder) {
  return folder.empty() ? kSyntheticDigitsName : kMnistName;
}

absl::StatusOr<TrainTestData> LoadData(const std::string& folder) {
  if (folder.empty()) return MakeSyntheticMnist(kSyntheticDataSeed);
  auto data = LoadMnist(folder);
  // A file that is not there is wrong input like one that is damaged.
  if (absl::IsNotFound(data.status()))
    return InvalidArgument("--data_dir: %s", std::string(data.status().message()));
  return data;
}

uint32_t TestSetCrc32c(const Dataset& test) {
  uint32_t crc = Crc32c(test.bytes.data(), test.bytes.size());
  crc = Crc32c(test.features.data(), test.features.size() * sizeof(float), crc);
  crc = Crc32c(test.ids.data(), test.ids.size() * sizeof(int32_t), crc);
  return Crc32c(test.labels.data(), test.labels.size(), crc);
}

}  // namespace muster
