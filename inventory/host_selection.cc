#include "inventory/host_selection.h"

#include <algorithm>
#include <map>
#include <set>

#include "inventory/host_range.h"
#include "inventory/yaml_tree.h"

namespace muster {
namespace {

// The hosts that a word names, by their names too.
using HostsByWord = std::map<std::string, std::set<std::string>>;

HostsByWord WordsOf(const Inventory& inventory) {
  HostsByWord words;
  for (const Host& host : inventory.hosts) {
    words[host.name].insert(host.name);
    for (const std::string& label : host.labels) words[label].insert(host.name);
  }
  return words;
}

}  // namespace

absl::Status SelectHosts(const std::vector<std::string>& words, Inventory* inventory) {
  const HostsByWord known = WordsOf(*inventory);
  std::set<std::string> selected;
  for (const std::string& word : words) {
    std::vector<std::string> parts = {word};
    if (word.find_first_of("[]") != std::string::npos) {
      MUSTER_ASSIGN_OR_RETURN(parts, ExpandHostNames(word));
    }
    for (const std::string& part : parts) {
      if (const auto hosts = known.find(part); hosts != known.end()) {
        selected.insert(hosts->second.begin(), hosts->second.end());
        continue;
      }
      std::vector<std::string> names;
      for (const auto& [name, hosts] : known) names.push_back(name);
      return InvalidArgument("%s is neither a host nor a label in %s%s", Quoted(part), inventory->path,
                             DidYouMean(part, names, "those there are"));
    }
  }
  std::erase_if(inventory->hosts, [&](const Host& host) { return !selected.contains(host.name); });
  return absl::OkStatus();
}

}  // namespace muster
