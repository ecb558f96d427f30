#include "inventory/inventory.h"

#include <absl/strings/ascii.h>
#include <absl/strings/str_join.h>

#include <algorithm>
#include <map>
#include <set>

#include "inventory/ansible_yaml.h"
#include "inventory/host_list.h"
#include "inventory/host_range.h"
#include "inventory/yaml_reader.h"

namespace muster {
namespace {

constexpr int kMaxGpuIndex = 255;
constexpr int kMostJumps = 8;  // on the way to a host
constexpr size_t kMostBlocks = 1024;
constexpr int64_t kMostAddresses = 65536;  // to search

// Gives a status without a position that of `node`.
template <typename T>
absl::StatusOr<T> At(const YamlNode& node, absl::StatusOr<T> value) {
  if (!value.ok()) return node.Error(std::string(value.status().message()));
  return value;
}

absl::StatusOr<std::string> ParseUser(const YamlNode& node) {
  MUSTER_RETURN_IF_ERROR(node.CheckText());
  const std::string& user = node.text;
  if (user.starts_with('-') || std::any_of(user.begin(), user.end(), absl::ascii_isspace)) {
    return node.Error(Quoted(user) + " is not a user name");
  }
  return user;
}

absl::StatusOr<std::string> ParseLabel(const YamlNode& node) {
  constexpr size_t kMaxLabelBytes = 63;
  MUSTER_RETURN_IF_ERROR(node.CheckText());
  const std::string& label = node.text;
  const auto is_label_byte = [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
  };
  if (label.size() > kMaxLabelBytes || !std::all_of(label.begin(), label.end(), is_label_byte)) {
    return node.Error(Quoted(label) + " is not a label: letters, digits, '-', '_' and '.', at most 63 bytes");
  }
  return label;
}

absl::StatusOr<std::optional<std::vector<int>>> ParseGpus(const YamlNode& node) {
  if (node.kind == YamlNode::Kind::kText && node.text == "auto") return std::nullopt;
  if (node.kind != YamlNode::Kind::kList)
    return node.Expected("auto, or a list of device indices like [0, 2]");
  MUSTER_ASSIGN_OR_RETURN(std::vector<int> gpus,
                          YamlList("device indices", YamlInteger<int>(0, kMaxGpuIndex))(node));
  for (size_t i = 0; i < gpus.size(); ++i) {
    if (std::count(gpus.begin(), gpus.begin() + i, gpus[i]) > 0) {
      return node.children[i].Error(absl::StrFormat("device %d is given twice", gpus[i]));
    }
  }
  return gpus;
}

absl::StatusOr<Endpoint> ParseJumpHost(const YamlNode& node) {
  MUSTER_RETURN_IF_ERROR(node.CheckText());
  return At(node, ParseEndpoint(node.text));
}

// none, one, several with commas as in ssh -J, or a list.
absl::StatusOr<std::vector<Endpoint>> ParseJump(const YamlNode& node) {
  if (node.kind != YamlNode::Kind::kText) return YamlList("jump hosts", ParseJumpHost)(node);
  MUSTER_RETURN_IF_ERROR(node.CheckText());
  return At(node, ParseJumpHosts(node.text));
}

absl::StatusOr<std::optional<Endpoint>> ParseSshAddress(const YamlNode& node) {
  if (node.kind == YamlNode::Kind::kList) {
    return node.Error("expected host or host:port, found a list; an IPv6 address in brackets needs quotes");
  }
  MUSTER_RETURN_IF_ERROR(node.CheckText());
  const std::string& text = node.text;
  MUSTER_ASSIGN_OR_RETURN(const Endpoint ssh, At(node, ParseEndpoint(text)));
  if (!ssh.user.empty())
    return node.Error("the user goes into `user: " + ssh.user + "`, not into the address");
  return ssh;
}

absl::StatusOr<std::string> ParseDataAddress(const YamlNode& node) {
  if (node.kind != YamlNode::Kind::kText || !IsAddressOfOneHost(node.text)) {
    return node.Expected("the IP address that other hosts reach this one at");
  }
  return node.text;
}

absl::StatusOr<AddressBlock> ParseSearchBlock(const YamlNode& node) {
  MUSTER_RETURN_IF_ERROR(node.CheckText());
  const std::string& text = node.text;
  return At(node, ParseAddressBlock(text));
}

absl::StatusOr<std::vector<AddressBlock>> ParseSearch(const YamlNode& node) {
  MUSTER_ASSIGN_OR_RETURN(const std::vector<AddressBlock> all,
                          YamlOneOrMore("address blocks", ParseSearchBlock)(node));
  if (all.size() > kMostBlocks) {
    return node.Error(absl::StrFormat("more than %d address blocks", kMostBlocks));
  }
  std::vector<AddressBlock> blocks;
  int64_t count = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    if (std::ranges::any_of(blocks, [&](const AddressBlock& known) { return Contains(known, all[i]); }))
      continue;
    std::erase_if(blocks, [&](const AddressBlock& known) {
      if (!Contains(all[i], known)) return false;
      count -= CountOf(known);
      return true;
    });
    blocks.push_back(all[i]);
    count += CountOf(all[i]);
    if (count > kMostAddresses) {
      const YamlNode& at = node.kind == YamlNode::Kind::kList ? node.children[i] : node;
      return at.Error(absl::StrFormat("%s, with those before it, has more than %d addresses to search",
                                      Quoted(at.text), kMostAddresses));
    }
  }
  return blocks;
}

absl::StatusOr<std::vector<std::string>> ParseCommand(const YamlNode& node) {
  if (node.kind == YamlNode::Kind::kText && !node.text.empty()) {
    return std::vector<std::string>{"/bin/sh", "-c", node.text};
  }
  if (node.kind != YamlNode::Kind::kList || node.children.empty()) {
    return node.Expected("a command line, or a list of a program and its arguments");
  }
  return YamlList("a program and its arguments", YamlText)(node);
}

absl::StatusOr<Discovery> ParseDiscovery(const YamlNode& node) {
  Discovery discovery{.position = node.position()};
  int64_t every_ms = discovery.every.count();
  YamlFields fields(node, "discover");
  fields.Require("command", &discovery.command, ParseCommand);
  fields.Read("every", &every_ms, YamlDurationMs);
  MUSTER_RETURN_IF_ERROR(fields.Finish());
  discovery.every = std::chrono::milliseconds(every_ms);
  return discovery;
}

// The keys that `defaults` and a host have in common.
void ReadSharedKeys(YamlFields& fields, const std::string& home, Host* host) {
  fields.Read("user", &host->user, ParseUser);
  fields.Read("port", &host->ssh_port, YamlInteger<int>(1, 65535));
  fields.Read("identity", &host->identities, YamlOneOrMore("key files", YamlLocalPath(home)));
  fields.Read("jump", &host->jump, ParseJump);
  fields.Read("labels", &host->labels, YamlOneOrMore("labels", ParseLabel));
  fields.Read("gpus", &host->gpus, ParseGpus);
  fields.Read("slots", &host->slots, YamlInteger<int>(1, kMostSlots));
  fields.Read("dir", &host->dir, YamlRemoteFolder);
}

// A host as its entry says, still without a name. Its SSH address is empty where the name is the address.
absl::StatusOr<Host> ParseHost(const YamlNode& node, const Host& defaults, const std::string& home) {
  Host host = defaults;
  std::optional<Endpoint> ssh;
  YamlFields fields(node, "host " + node.key);
  ReadSharedKeys(fields, home, &host);
  fields.Read("ssh", &ssh, ParseSshAddress);
  fields.Read("data", &host.data_address, ParseDataAddress);
  fields.Read("local", &host.local, YamlBoolean);
  MUSTER_RETURN_IF_ERROR(fields.Finish());
  if (host.local) {
    for (const YamlNode& child : node.children) {
      if (child.key == "ssh" || child.key == "port" || child.key == "user" || child.key == "identity" ||
          child.key == "jump") {
        return child.KeyError(absl::StrFormat(
            "%s means nothing for a local host, which is reached without SSH", Quoted(child.key)));
      }
    }
  }
  if (ssh) {
    host.ssh_address = ssh->address;
    const YamlNode* port = node.Find("port");
    if (ssh->port != 0 && port != nullptr) {
      return port->KeyError("the port is given twice, here and in `ssh`");
    }
    if (ssh->port != 0) host.ssh_port = ssh->port;
  }
  host.position = node.key_position();
  return host;
}

// Where a host is, as text: two hosts with the same are one machine.
std::string Whereabouts(const Host& host) {
  if (host.local) return "this machine, without SSH";
  std::string place = absl::StrFormat("%s port %d", CanonicalAddress(host.ssh_address), host.ssh_port);
  for (const Endpoint& jump : host.jump.value_or(std::vector<Endpoint>())) {
    place += absl::StrFormat(" through %s port %d", CanonicalAddress(jump.address),
                             jump.port != 0 ? jump.port : kDefaultSshPort);
  }
  return place;
}

// What the inventory leaves open, from ssh's configuration and then as ssh has it. Of who is `on_the_way` to
// others the inventory says all that it wants to.
absl::Status FillIn(const SshConfig& config, Host* host, bool on_the_way = false) {
  MUSTER_ASSIGN_OR_RETURN(SshHostConfig more,
                          config.For(host->ssh_address, {.user = host->user,
                                                         .port = host->ssh_port,
                                                         .has_jump = host->jump && !host->jump->empty()}));
  if (!more.host_name.empty()) host->ssh_address = more.host_name;
  if (host->ssh_port == 0) host->ssh_port = more.port != 0 ? more.port : kDefaultSshPort;
  if (host->user.empty()) host->user = more.user;
  if (host->identities.empty()) host->identities = more.identities;
  if (!host->jump && !more.jump_error.empty()) return absl::InvalidArgumentError(more.jump_error);
  if (!host->jump && !more.unknown_jump.empty() && !on_the_way) {
    return absl::InvalidArgumentError(more.unknown_jump);
  }
  if (!host->jump && more.jump) {
    host->jump = std::move(more.jump);
    host->is_jump_of_ssh = true;
  }
  return absl::OkStatus();
}

// Of arguments of ssh; in its configuration they are replaced already.
absl::Status ReplaceTokens(Host* host) {
  for (Endpoint& jump : *host->jump) {
    if (jump.user == "%r") jump.user = host->user.empty() ? LocalAccount() : host->user;
    if (jump.user.find('%') != std::string::npos) {
      return InvalidArgument("the user %s: of ssh's tokens only %%r is read there, alone", Quoted(jump.user));
    }
  }
  return absl::OkStatus();
}

// The ways to hosts.
class JumpFinder {
 public:
  JumpFinder(const std::vector<Host>& hosts, const SshConfig& config) : config_(config) {
    for (const Host& host : hosts) by_name_[host.name] = &host;
  }

  absl::StatusOr<std::vector<JumpHost>> To(const Host& host) const {
    std::vector<JumpHost> jumps;
    MUSTER_RETURN_IF_ERROR(Add(host, {}, &jumps));
    return jumps;
  }

 private:
  // `behind`: the hosts that `host` is on the way to. As ssh: the first jump host is reached by its own jump
  // hosts, each of the others by the one before it.
  absl::Status Add(const Host& host, std::vector<std::string> behind, std::vector<JumpHost>* jumps) const {
    behind.push_back(host.name);
    bool is_first = true;
    for (const Endpoint& jump : host.jump.value_or(std::vector<Endpoint>())) {
      MUSTER_ASSIGN_OR_RETURN(const Host on_the_way, HostOf(jump, host));
      // By `defaults` a jump host has itself to go through, and those before it.
      const bool is_itself = on_the_way.name == host.name || (CanonicalAddress(on_the_way.ssh_address) ==
                                                                  CanonicalAddress(host.ssh_address) &&
                                                              on_the_way.ssh_port == host.ssh_port);
      if (is_itself) break;
      if (std::find(behind.begin(), behind.end(), on_the_way.name) != behind.end()) {
        return InvalidArgument("jump hosts lead in a circle: %s -> %s", absl::StrJoin(behind, " -> "),
                               on_the_way.name);
      }
      if (on_the_way.local) continue;
      if (std::exchange(is_first, false)) MUSTER_RETURN_IF_ERROR(Add(on_the_way, behind, jumps));
      jumps->push_back({on_the_way.name, on_the_way.ssh_address, on_the_way.ssh_port, on_the_way.user,
                        on_the_way.identities});
      if (jumps->size() > kMostJumps) return InvalidArgument("more than %d jump hosts", kMostJumps);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Host> HostOf(const Endpoint& jump, const Host& behind) const {
    if (const auto found = by_name_.find(jump.address); found != by_name_.end()) {
      Host host = *found->second;
      if (jump.port != 0) host.ssh_port = jump.port;
      if (!jump.user.empty()) host.user = jump.user;
      return host;
    }
    Host host{.ssh_address = jump.address, .ssh_port = jump.port, .user = jump.user};
    MUSTER_RETURN_IF_ERROR(FillIn(config_, &host, /*on_the_way=*/true));
    host.name = host.ssh_port == kDefaultSshPort ? jump.address
                                                 : absl::StrFormat("[%s]:%d", jump.address, host.ssh_port);
    if (behind.is_jump_of_ssh) return host;
    if (host.user.empty()) host.user = behind.user;
    if (host.identities.empty()) host.identities = behind.identities;
    return host;
  }

  const SshConfig& config_;
  std::map<std::string, const Host*> by_name_;
};

absl::StatusOr<std::vector<Host>> ParseHosts(const YamlNode& node, const Host& defaults,
                                             const std::string& home, const SshConfig& config) {
  if (node.kind != YamlNode::Kind::kMapping)
    return node.Expected("a mapping from host names to their settings");
  std::vector<Host> hosts;
  std::map<std::string, size_t> by_name, by_place;  // index of the host
  for (const YamlNode& entry : node.children) {
    const absl::StatusOr<std::vector<std::string>> names = ExpandHostNames(entry.key);
    if (!names.ok()) return entry.KeyError(std::string(names.status().message()));
    MUSTER_ASSIGN_OR_RETURN(const Host settings, ParseHost(entry, defaults, home));
    if (hosts.size() + names->size() > kMaxHosts) {
      return entry.KeyError(absl::StrFormat("more than %d hosts", kMaxHosts));
    }
    for (const std::string& name : *names) {
      Host host = settings;
      host.name = name;
      if (!host.local) {
        if (host.ssh_address.empty()) host.ssh_address = name;
        MUSTER_RETURN_IF_ERROR(FillIn(config, &host));
        if (const YamlNode* const jump = entry.Find("jump"); jump != nullptr && host.is_jump_of_ssh) {
          const absl::Status replaced = ReplaceTokens(&host);
          if (!replaced.ok()) return jump->Error(std::string(replaced.message()));
        }
      }
      const auto [same_name, name_is_new] = by_name.emplace(name, hosts.size());
      if (!name_is_new) {
        return entry.KeyError(absl::StrFormat("duplicate host %s, given before at %s", Quoted(name),
                                              hosts[same_name->second].position.ToString()));
      }
      const auto [same_place, place_is_new] = by_place.emplace(Whereabouts(host), hosts.size());
      if (!place_is_new) {
        const Host& first = hosts[same_place->second];
        return entry.KeyError(absl::StrFormat("hosts %s and %s (at %s) are the same machine: %s",
                                              Quoted(name), Quoted(first.name), first.position.ToString(),
                                              Whereabouts(host)));
      }
      hosts.push_back(std::move(host));
    }
  }
  if (hosts.empty()) return node.Error("no hosts");
  return hosts;
}

// Where none is its host.
absl::Status AddDiscovered(const std::map<std::string, Endpoint>& discovered, const Host& defaults,
                           const SourcePosition& position, const SshConfig& config,
                           std::vector<Host>* hosts) {
  std::set<std::string> names, places;
  std::map<std::string, std::string> by_place;  // names of those that are discovered
  const auto claim = [&](const Host& host) -> absl::Status {
    const auto [known, is_new] = by_place.emplace(Whereabouts(host), host.name);
    if (is_new) return absl::OkStatus();
    return InvalidArgument("%s: the discovery command has %s and %s at the same place: %s",
                           position.ToString(), Quoted(known->second), Quoted(host.name), known->first);
  };
  for (Host& host : *hosts) {
    names.insert(host.name);
    // Where it is now, and no more where the file says.
    if (const auto now = discovered.find(host.name); now != discovered.end() && !host.local) {
      host.ssh_address = now->second.address;
      if (now->second.port != 0) host.ssh_port = now->second.port;
      MUSTER_RETURN_IF_ERROR(claim(host));
    }
    places.insert(Whereabouts(host));
  }
  for (const auto& [name, endpoint] : discovered) {
    const auto is_name = ExpandHostNames(name);
    if (!is_name.ok() || is_name->size() != 1 || is_name->front() != name) {
      return InvalidArgument("%s: the discovery command names %s, which is no host name", position.ToString(),
                             Quoted(name));
    }
    if (!names.insert(name).second) continue;
    Host host = defaults;
    host.name = name;
    host.ssh_address = endpoint.address;
    if (endpoint.port != 0) host.ssh_port = endpoint.port;
    host.position = position;
    MUSTER_RETURN_IF_ERROR(FillIn(config, &host));
    MUSTER_RETURN_IF_ERROR(claim(host));
    if (!places.insert(Whereabouts(host)).second) continue;
    if (hosts->size() >= kMaxHosts) {
      return InvalidArgument("%s: more than %d hosts with those that are discovered", position.ToString(),
                             kMaxHosts);
    }
    hosts->push_back(std::move(host));
  }
  return absl::OkStatus();
}

absl::Status FindJumps(const SshConfig& config, std::vector<Host>* all) {
  std::vector<Host>& hosts = *all;
  const JumpFinder finder(hosts, config);
  std::vector<std::vector<JumpHost>> jumps;
  for (const Host& host : hosts) {
    auto way = host.local ? std::vector<JumpHost>() : finder.To(host);
    if (!way.ok()) {
      return InvalidArgument("%s: host %s: %s", host.position.ToString(), host.name,
                             std::string(way.status().message()));
    }
    jumps.push_back(*std::move(way));
  }
  for (size_t i = 0; i < hosts.size(); ++i) hosts[i].jumps = std::move(jumps[i]);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Inventory> ParseInventory(std::string_view text, const std::string& path,
                                         const std::string& home, const SshConfig& config,
                                         const std::map<std::string, Endpoint>& discovered) {
  const bool is_list = IsHostList(text);
  MUSTER_ASSIGN_OR_RETURN(YamlDocument document, is_list ? ParseHostList(text, path) : ParseYaml(text, path));
  const bool is_ansible_yaml = IsAnsibleYaml(document.root);
  if (is_ansible_yaml) {
    MUSTER_ASSIGN_OR_RETURN(document, ReadAnsibleYaml(document));
  }
  Inventory inventory{.path = path};
  // Those formats have jump hosts in arguments of ssh.
  Host defaults{.ssh_port = 0, .is_jump_of_ssh = is_list || is_ansible_yaml};
  const auto parse_defaults = [&](const YamlNode& node) -> absl::StatusOr<Host> {
    Host host = defaults;
    YamlFields fields(node, "defaults");
    ReadSharedKeys(fields, home, &host);
    MUSTER_RETURN_IF_ERROR(fields.Finish());
    return host;
  };
  const auto parse_hosts = [&](const YamlNode& node) { return ParseHosts(node, defaults, home, config); };
  YamlFields fields(document.root, "the inventory");
  fields.Read("defaults", &defaults, parse_defaults);
  // Those that are there may all be discovered.
  if (document.root.Find("discover") == nullptr || document.root.Find("hosts") != nullptr) {
    fields.Require("hosts", &inventory.hosts, parse_hosts);
  }
  fields.Read("search", &inventory.search, ParseSearch);
  fields.Read("discover", &inventory.discover, ParseDiscovery);
  MUSTER_RETURN_IF_ERROR(fields.Finish());
  if (const YamlNode* discover = document.root.Find("discover"); discover != nullptr) {
    MUSTER_RETURN_IF_ERROR(
        AddDiscovered(discovered, defaults, discover->position(), config, &inventory.hosts));
  }
  MUSTER_RETURN_IF_ERROR(FindJumps(config, &inventory.hosts));
  return inventory;
}

absl::StatusOr<Inventory> ReadInventory(const std::filesystem::path& path, const std::string& home,
                                        const std::map<std::string, Endpoint>& discovered) {
  MUSTER_ASSIGN_OR_RETURN(const std::string text, ReadYamlText(path));
  MUSTER_ASSIGN_OR_RETURN(const SshConfig config, SshConfig::Load(home + "/.ssh/config", home));
  return ParseInventory(text, path.string(), home, config, discovered);
}

}  // namespace muster
