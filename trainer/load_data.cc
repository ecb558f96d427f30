#include "trainer/load_data.h"

#include "trainer/data/make_data.h"
#include "trainer/data/mnist.h"
#include "trainer/data/synthetic_digits.h"

namespace muster {

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

}  // namespace muster
