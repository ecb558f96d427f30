#include "launcher/virtual_hosts.h"

#include <sys/stat.h>

#include <atomic>
#include <utility>

#include "base/file.h"

namespace muster {
namespace {

constexpr char kNeedsVeth[] = "virtual hosts need a kernel with veth and bridge (CONFIG_VETH, CONFIG_BRIDGE)";
constexpr char kNeedsTbf[] =
    "a link rate needs tbf in the kernel (CONFIG_NET_SCH_TBF); links without one have the rate none";
constexpr char kNeedsNetem[] =
    "an added latency needs netem in the kernel (CONFIG_NET_SCH_NETEM), which not every one has: leave the "
    "latency out, or use another kernel";

absl::Status WithHint(const absl::Status& status, const std::string& hint) {
  if (status.ok()) return status;
  return absl::Status(status.code(), std::string(status.message()) + "; " + hint);
}

absl::Status Check(const VirtualHostsOptions& options) {
  if (options.count < 1 || options.count > kMaxVirtualHosts)
    return InvalidArgument("%d virtual hosts: expected 1 to %d", options.count, kMaxVirtualHosts);
  if (options.latency < Duration::zero())
    return InvalidArgument("the latency of virtual hosts is below 0: %.3f s", ToSeconds(options.latency));
  return CheckMayMakeNamespaces();
}

// New: other accounts can make folders in /var/tmp, too, and programs are run from this one.
absl::Status MakeHome(const std::filesystem::path& path) {
  if (::mkdir(path.c_str(), 0700) == 0) return absl::OkStatus();
  return ErrnoError(errno, "make the folder " + path.string());
}

std::string Port(int host) { return absl::StrFormat("port-%d", host + 1); }

// What leaves through this interface, to the other end of the link, is held to the rate.
absl::Status SetRate(const NetworkNamespace& network, const std::string& interface, LinkRate rate) {
  if (!rate.is_limited()) return absl::OkStatus();
  const Shaping shaping = ShapingFor(rate);
  return WithHint(
      network.Tc({"qdisc", "add", "dev", interface, "root", "handle", "1:", "tbf", "rate",
                  absl::StrFormat("%dbit", rate.bits_per_second), "burst",
                  std::to_string(shaping.burst_bytes), "limit", std::to_string(shaping.queue_bytes)}),
      kNeedsTbf);
}

// Of what leaves through this interface, before it comes to the rate.
absl::Status SetLatency(const NetworkNamespace& network, const std::string& interface, LinkRate rate,
                        Duration latency) {
  if (latency == Duration::zero()) return absl::OkStatus();
  constexpr char kManyPackets[] = "1000000";  // those under way count against this
  std::vector<std::string> arguments = {"qdisc", "add", "dev", interface};
  if (rate.is_limited()) {
    arguments.insert(arguments.end(), {"parent", "1:1", "handle", "10:"});
  } else {
    arguments.push_back("root");
  }
  const auto microseconds = std::chrono::duration_cast<std::chrono::microseconds>(latency).count();
  arguments.insert(arguments.end(),
                   {"netem", "delay", absl::StrFormat("%dus", microseconds), "limit", kManyPackets});
  return WithHint(network.Tc(std::move(arguments)), kNeedsNetem);
}

// The number tells those of one process apart.
std::string NewNamePrefix(const Owner& owner) {
  static std::atomic<int> made = 0;
  return absl::StrFormat("%s%d", NamePrefix(owner), ++made);
}

}  // namespace

absl::StatusOr<std::unique_ptr<VirtualHosts>> VirtualHosts::Create(const VirtualHostsOptions& options) {
  MUSTER_RETURN_IF_ERROR(Check(options));
  // What cannot be removed now is no reason not to begin.
  (void)RemoveAbandonedHosts(options.folder);
  MUSTER_ASSIGN_OR_RETURN(const Owner owner, Owner::ThisProcess());
  const std::string prefix = NewNamePrefix(owner);
  MUSTER_ASSIGN_OR_RETURN(NetworkNamespace network, NetworkNamespace::Create(prefix + "-switch"));
  std::unique_ptr<VirtualHosts> hosts(new VirtualHosts(options, prefix, std::move(network)));
  MUSTER_RETURN_IF_ERROR(MakeHome(hosts->homes_));
  MUSTER_RETURN_IF_ERROR(hosts->AddSwitch());
  for (int host = 0; host < options.count; ++host) MUSTER_RETURN_IF_ERROR(hosts->AddHost());
  return hosts;
}

VirtualHosts::VirtualHosts(const VirtualHostsOptions& options, const std::string& name_prefix,
                           NetworkNamespace network)
    : options_(options),
      name_prefix_(name_prefix),
      homes_(options.folder / name_prefix),
      switch_(std::move(network)) {}

VirtualHosts::~VirtualHosts() { (void)Remove(); }

std::string VirtualHosts::Name(int host) { return absl::StrFormat("host-%d", host + 1); }
std::string VirtualHosts::Address(int host) { return absl::StrFormat("10.99.0.%d", host + 1); }
std::filesystem::path VirtualHosts::home(int host) const { return homes_ / Name(host); }

absl::Status VirtualHosts::AddSwitch() {
  MUSTER_RETURN_IF_ERROR(WithHint(
      switch_.Ip({"link", "add", "name", "bridge", "type", "bridge", "forward_delay", "0"}), kNeedsVeth));
  return switch_.Ip({"link", "set", "dev", "bridge", "up"});
}

absl::Status VirtualHosts::AddHost() {
  const int host = count();
  MUSTER_RETURN_IF_ERROR(MakeHome(home(host)));
  MUSTER_ASSIGN_OR_RETURN(NetworkNamespace made, NetworkNamespace::Create(name_prefix_ + "-" + Name(host)));
  hosts_.push_back(std::move(made));
  const NetworkNamespace& network = hosts_.back();
  MUSTER_RETURN_IF_ERROR(WithHint(switch_.Ip({"link", "add", "name", Port(host), "type", "veth", "peer",
                                              "name", "eth0", "netns", network.name()}),
                                  kNeedsVeth));
  MUSTER_RETURN_IF_ERROR(switch_.Ip({"link", "set", "dev", Port(host), "master", "bridge", "up"}));
  MUSTER_RETURN_IF_ERROR(network.Ip({"address", "add", Address(host) + "/24", "dev", "eth0"}));
  if (options_.rate.is_limited()) {
    const std::string super_packet = std::to_string(ShapingFor(options_.rate).super_packet_bytes);
    MUSTER_RETURN_IF_ERROR(network.Ip({"link", "set", "dev", "eth0", "gso_max_size", super_packet}));
  }
  MUSTER_RETURN_IF_ERROR(network.Ip({"link", "set", "dev", "eth0", "up"}));
  MUSTER_RETURN_IF_ERROR(SetRate(network, "eth0", options_.rate));
  MUSTER_RETURN_IF_ERROR(SetRate(switch_, Port(host), options_.rate));
  return SetLatency(network, "eth0", options_.rate, options_.latency);
}

Inventory VirtualHosts::InventoryOf(const VirtualHostsOptions& options) {
  Inventory inventory{.path = "virtual hosts"};
  for (int host = 0; host < options.count; ++host) {
    inventory.hosts.push_back({.name = Name(host),
                               .local = true,
                               .data_address = Address(host),
                               .labels = options.labels,
                               .gpus = std::vector<int>()});
  }
  return inventory;
}

std::map<std::string, LocalOptions> VirtualHosts::local_hosts() const {
  std::map<std::string, LocalOptions> hosts;
  for (int host = 0; host < count(); ++host) {
    hosts[Name(host)] = {
        .name = Name(host), .home = home(host).string(), .command_prefix = network(host).command_prefix()};
  }
  return hosts;
}

absl::Status VirtualHosts::SetLink(int host, bool up) const {
  return switch_.Ip({"link", "set", "dev", Port(host), up ? "up" : "down"});
}

absl::Status VirtualHosts::Remove() {
  absl::Status status;
  for (NetworkNamespace& host : hosts_) status.Update(host.Remove());
  status.Update(switch_.Remove());
  status.Update(RemoveTree(homes_));
  return status;
}

absl::Status RemoveAbandonedHosts(const std::filesystem::path& folder) {
  absl::Status status = RemoveAbandonedNamespaces();
  for (const std::string& name : ListDirectory(folder).value_or(std::vector<std::string>())) {
    const auto owner = OwnerOfName(name);
    if (owner && owner->HasGone()) status.Update(RemoveTree(folder / name));
  }
  return status;
}

}  // namespace muster
