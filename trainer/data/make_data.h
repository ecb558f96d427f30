// The synthetic sets as files, in the formats of the real ones.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"

namespace muster {

/// Of the one synthetic set of each kind that there is, whatever the seed of a training.
inline constexpr uint64_t kSyntheticDataSeed = 1;

/// The kinds: "mnist", "census".
const std::vector<std::string>& SyntheticDataKinds();

/// Writes the files of `dir`/`kind`, which LoadMnist and LoadCensus read: 11 MB and 3 MB. Files that are
/// there already with the same bytes stay untouched. Returns the paths. InvalidArgument: another kind.
/// FailedPrecondition, with nothing written: a file is there and differs, or is there packed and would be
/// hidden.
absl::StatusOr<std::vector<std::filesystem::path>> WriteSyntheticData(const std::string& kind,
                                                                      const std::filesystem::path& dir);

}  // namespace muster
