// The include graph is the one of docs/ARCHITECTURE.md: a lower layer never includes a higher one.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>

#include "tests/support/checkout.h"

namespace muster {
namespace {

namespace fs = std::filesystem;

// What each folder may include besides itself. Tests may include anything.
const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"base", {}},
    {"proto", {}},
    {"cluster", {"base"}},
    {"inventory", {"base"}},
    {"kernels", {"base"}},
    {"ps", {"base", "proto", "cluster", "kernels"}},
    {"collective", {"base", "proto", "cluster", "kernels"}},
    {"trainer", {"base", "proto", "cluster", "kernels", "ps", "collective"}},
    {"agent", {"base", "proto"}},
    {"launcher/reconciler", {"base"}},
    {"launcher/transport", {"base", "proto", "inventory"}},
    {"launcher", {"base", "proto", "cluster", "inventory", "bench/simulator"}},
    {"bench/simulator", {"base"}},
};

bool IsTest(const fs::path& path) {
  const std::string name = path.stem().string();
  return name.ends_with("_test") || name.ends_with("_testing");
}

bool IsSource(const fs::path& path) {
  const std::string extension = path.extension().string();
  return extension == ".h" || extension == ".cc" || extension == ".cu" || extension == ".cuh";
}

TEST(Layers, NoFolderIncludesWhatIsAboveIt) {
  const fs::path root = SourcePath();
  const std::regex include("^\\s*#\\s*include\\s+\"([a-z_]+/.*)");
  int includes = 0;
  for (const auto& [folder, allowed] : kMayInclude) {
    if (!fs::exists(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (!IsSource(entry.path()) || IsTest(entry.path())) continue;
      std::ifstream file(entry.path());
      std::string line;
      for (int number = 1; std::getline(file, line); ++number) {
        std::smatch match;
        if (!std::regex_match(line, match, include)) continue;
        ++includes;
        const std::string target = match[1];
        const auto is_in = [&](const std::string& of) { return target.starts_with(of + "/"); };
        EXPECT_TRUE(is_in(folder) || std::any_of(allowed.begin(), allowed.end(), is_in))
            << entry.path().lexically_relative(root).string() << ":" << number << " includes " << target
            << ", which " << folder << "/ may not use";
      }
    }
  }
  EXPECT_GT(includes, 50) << "the expression no longer finds the includes";
}

TEST(Layers, EveryTestIsBuilt) {
  const fs::path root = SourcePath();
  for (const auto& [folder, allowed] : kMayInclude) {
    if (!fs::exists(root / folder)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      if (!IsTest(entry.path()) || entry.path().extension() != ".cc") continue;
      bool named = false;
      for (fs::path up = entry.path().parent_path(); up != root.parent_path() && !named;
           up = up.parent_path()) {
        std::ifstream file(up / "CMakeLists.txt");
        const std::string text((std::istreambuf_iterator<char>(file)), {});
        named = text.find(entry.path().filename().string()) != std::string::npos;
      }
      EXPECT_TRUE(named) << entry.path().lexically_relative(root).string() << " stands in no CMakeLists.txt";
    }
  }
}

}  // namespace
}  // namespace muster
