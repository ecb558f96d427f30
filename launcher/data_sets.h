// The data sets that `muster data fetch` knows, and the cache that it keeps them in.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace muster {

struct DataFile {
  std::string name;
  std::string sha256;  // of the unpacked bytes, in hexadecimal
  bool packed = true;  // mirrors have NAME.gz
  std::string RemoteName() const { return packed ? name + ".gz" : name; }
};

struct DataSet {
  std::string name;   // also of its folder
  std::string title;  // for people
  std::vector<DataFile> files;
  std::vector<std::string> mirrors;  // URLs of folders that hold the files
};

const std::vector<DataSet>& DataSets();

/// The set of that name, or nullptr.
const DataSet* FindDataSet(const std::string& name);

/// The set that a built-in model trains on.
const DataSet& DataSetOfModel(const std::string& model);

/// Whether `folder`/NAME holds every file of the set, packed or not. Looks at names only.
bool HasDataSet(const std::filesystem::path& folder, const DataSet& set);

/// Where sets are kept: `muster_cache`/data, else `xdg_cache_home`/muster/data, else
/// `home`/.cache/muster/data. Empty ones do not count, nor does an XDG_CACHE_HOME that is not absolute (XDG
/// Base Directory Specification).
std::filesystem::path DataCache(const std::string& muster_cache, const std::string& xdg_cache_home,
                                const std::string& home);

}  // namespace muster
