// Hosts in groups that have variables, as Ansible's inventories have them: what the readers of its two
// formats have in common. What they say becomes the tree that the same inventory of muster would be.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/status.h"
#include "inventory/yaml_tree.h"

namespace muster {

/// A piece of a file, without its quotes.
struct PlacedText {
  std::string text;
  int line = 1;
  int column = 1;
};

class HostGroups {
 public:
  using Settings = std::map<std::string, PlacedText>;  // by the key of an inventory

  struct Entry {
    PlacedText name;
    Settings settings;
    std::vector<std::string> groups;
    int slots = 0;  // 0: nobody has counted them
  };

  /// `path` is for messages.
  explicit HostGroups(const std::string& path) : path_(path) {}

  /// A name that comes again is the same group, at its first place.
  void AddGroup(const PlacedText& name);
  /// What is only mentioned, as a child or as what has variables, has to be added too, before or after.
  void Mention(const PlacedText& name) { mentions_.push_back({name, ""}); }
  void AddChild(const std::string& group, const PlacedText& child);
  Settings& SettingsOf(const std::string& group) { return groups_[group].settings; }

  /// Sets what a variable stands for, if it is one of those that count.
  absl::Status Set(const std::string& variable, PlacedText value, Settings* settings) const;
  static bool Counts(const std::string& variable);

  /// Of "name:22" takes the number, and leaves the name; a range's colon is none.
  static std::optional<PlacedText> TakeNumber(PlacedText* pattern);

  /// Whether it is an IPv6 address, with a port or without one, and what there is to say of such a name.
  static bool IsIpv6(const std::string& pattern);
  static constexpr char kNoName[] = "an IPv6 address is no name: write NAME ansible_host=ADDRESS";

  /// All hosts of a pattern, in this group ("": none); what is set for one again takes the place of what was,
  /// but for a port that stands behind the name ("name:22", in Ansible's formats), which any other has
  /// precedence over. The entries are valid until this is destroyed.
  absl::StatusOr<std::vector<Entry*>> AddHosts(PlacedText pattern, const Settings& settings,
                                               const std::string& group);

  /// After the last of all that: as ParseHostList has it. InvalidArgument: groups that are nowhere defined,
  /// that hold themselves, or are nested too deep.
  absl::StatusOr<YamlDocument> Tree();

  absl::Status Error(const PlacedText& at, const std::string& message) const;

 private:
  struct Group {
    Settings settings;
    PlacedText name;
  };

  struct Mentioned {
    PlacedText name;
    std::string holder;  // "": none
  };

  absl::Status CheckGroups();
  absl::Status CheckLoops(const std::map<std::string, size_t>& open) const;
  int DepthOf(const std::string& group) const;
  std::vector<std::string> GroupsOf(const Entry& entry) const;
  void AddArguments(Settings* settings) const;
  std::vector<std::string> ByPrecedence(std::vector<std::string> groups) const;

  const std::string path_;
  std::map<std::string, Group> groups_;
  std::map<std::string, std::set<std::string>> parents_;  // groups by those that they hold
  std::vector<Mentioned> mentions_;                       // in the order of the file
  std::map<std::string, int> depths_;  // below `all`, of groups that hold some or are held, once checked
  std::deque<Entry> entries_;
  std::map<std::string, Entry*> by_name_;
};

}  // namespace muster
