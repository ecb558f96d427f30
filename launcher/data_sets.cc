#include "launcher/data_sets.h"

#include <algorithm>

#include "base/gzip.h"
#include "base/status.h"

namespace muster {

const std::vector<DataSet>& DataSets() {
  static const std::vector<DataSet> sets = {
      {.name = "mnist",
       .title = "MNIST",
       .files =
           {{"train-images-idx3-ubyte", "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"},
            {"train-labels-idx1-ubyte", "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"},
            {"t10k-images-idx3-ubyte", "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"},
            {"t10k-labels-idx1-ubyte", "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"}},
       .mirrors = {"https://storage.googleapis.com/cvdf-datasets/mnist",
                   "https://ossci-datasets.s3.amazonaws.com/mnist"}},
      {.name = "census",
       .title = "Census",
       .files = {{"adult.data", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d", false},
                 {"adult.test", "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05", false}},
       .mirrors = {"https://archive.ics.uci.edu/ml/machine-learning-databases/adult",
                   "http://mlr.cs.umass.edu/ml/machine-learning-databases/adult"}},
  };
  return sets;
}

const DataSet* FindDataSet(const std::string& name) {
  for (const DataSet& set : DataSets()) {
    if (set.name == name) return &set;
  }
  return nullptr;
}

const DataSet& DataSetOfModel(const std::string& model) {
  const DataSet* const set = FindDataSet(model == "wide_deep" ? "census" : "mnist");
  MUSTER_CHECK(set != nullptr);
  return *set;
}

bool HasDataSet(const std::filesystem::path& folder, const DataSet& set) {
  return std::all_of(set.files.begin(), set.files.end(), [&](const DataFile& file) {
    return FindPlainOrGzip(folder / set.name, file.name).ok();
  });
}

std::filesystem::path DataCache(const std::string& muster_cache, const std::string& xdg_cache_home,
                                const std::string& home) {
  if (!muster_cache.empty()) return std::filesystem::path(muster_cache) / "data";
  const std::filesystem::path xdg(xdg_cache_home);
  return (xdg.is_absolute() ? xdg : std::filesystem::path(home) / ".cache") / "muster" / "data";
}

}  // namespace muster
