// The data set that the flags name.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "trainer/data/dataset.h"

namespace muster {

/// The kinds, as saved models name what they were trained with.
inline constexpr const char* kMnistName = "mnist";
inline constexpr const char* kSyntheticDigitsName = "synthetic_digits";

/// Of a folder as LoadData takes it.
std::string DataSetName(const std::string& folder);

/// MNIST from `folder`/mnist, or the synthetic digits, which are the same for everybody, if it is empty.
/// InvalidArgument: files that are missing or damaged.
absl::StatusOr<TrainTestData> LoadData(const std::string& folder);

/// Tells test sets apart that have the same name: CRC-32C over bytes, features, ids (both little-endian) and
/// labels.
uint32_t TestSetCrc32c(const Dataset& test);

}  // namespace muster
