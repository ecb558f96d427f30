#include "trainer/data/make_data.h"

#include <absl/strings/str_join.h>

#include <system_error>

#include "base/file.h"
#include "trainer/data/mnist.h"
#include "trainer/data/synthetic_census.h"
#include "trainer/data/synthetic_digits.h"

namespace muster {
namespace {

struct NamedFile {
  std::string name;
  std::string bytes;
};

// As ParseIdx reads them.
std::string IdxBytes(const std::vector<int64_t>& shape, const std::vector<uint8_t>& values) {
  std::string bytes = {0, 0, 8, static_cast<char>(shape.size())};
  for (const int64_t dimension : shape) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(dimension >> shift);
  }
  return bytes.append(values.begin(), values.end());
}

void AddPart(const Dataset& dataset, const std::string& part, std::vector<NamedFile>* files) {
  files->push_back(
      {part + "-images-idx3-ubyte", IdxBytes({dataset.size(), kMnistSide, kMnistSide}, dataset.bytes)});
  files->push_back({part + "-labels-idx1-ubyte", IdxBytes({dataset.size()}, dataset.labels)});
}

absl::StatusOr<std::vector<NamedFile>> MakeFiles(const std::string& kind) {
  std::vector<NamedFile> files;
  if (kind == "mnist") {
    const TrainTestData mnist = MakeSyntheticMnist(kSyntheticDataSeed);
    AddPart(mnist.train, "train", &files);
    AddPart(mnist.test, "t10k", &files);
    return files;
  }
  if (kind == "census") {
    CensusFiles census = MakeSyntheticCensusFiles(kSyntheticDataSeed);
    files.push_back({"adult.data", std::move(census.train)});
    files.push_back({"adult.test", std::move(census.test)});
    return files;
  }
  return InvalidArgument("there is no synthetic set \"%s\": %s", kind,
                         absl::StrJoin(SyntheticDataKinds(), ", "));
}

// True if the file is there as it should be; false if there is none.
absl::StatusOr<bool> IsThere(const std::filesystem::path& path, const std::string& bytes) {
  const std::filesystem::path packed = path.string() + ".gz";
  if (std::error_code ignored; std::filesystem::exists(packed, ignored)) {
    return FailedPrecondition(
        "%s is there already, and would be hidden by the synthetic set: give another folder",
        packed.string());
  }
  auto old = ReadFile(path, bytes.size());
  if (absl::IsNotFound(old.status())) return false;
  if (old.ok() && *old == bytes) return true;
  if (old.ok() || absl::IsInvalidArgument(old.status())) {  // a larger file
    return FailedPrecondition("%s is there already and is something else: give another folder, or remove it",
                              path.string());
  }
  return old.status();
}

}  // namespace

const std::vector<std::string>& SyntheticDataKinds() {
  static const std::vector<std::string> kinds = {"mnist", "census"};
  return kinds;
}

absl::StatusOr<std::vector<std::filesystem::path>> WriteSyntheticData(const std::string& kind,
                                                                      const std::filesystem::path& dir) {
  MUSTER_ASSIGN_OR_RETURN(const std::vector<NamedFile> files, MakeFiles(kind));
  std::vector<std::filesystem::path> paths;
  std::vector<const NamedFile*> missing;
  for (const NamedFile& file : files) {
    paths.push_back(dir / kind / file.name);
    MUSTER_ASSIGN_OR_RETURN(const bool is_there, IsThere(paths.back(), file.bytes));
    if (!is_there) missing.push_back(&file);
  }
  MUSTER_RETURN_IF_ERROR(MakeDirectories(dir / kind));
  for (const NamedFile* file : missing) {
    MUSTER_RETURN_IF_ERROR(WriteFileAtomically(dir / kind / file->name, file->bytes));
  }
  return paths;
}

}  // namespace muster
