#include "launcher/host_watch.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <span>

#include "launcher/discovery.h"
#include "launcher/host_search.h"
#include "launcher/transport/known_hosts.h"

namespace muster {
namespace {

constexpr Duration kPollInterval = std::chrono::milliseconds(250);
// So many addresses, then it is looked whether there are other news.
constexpr size_t kSliceAddresses = 256;
constexpr Duration kFirstPause = std::chrono::milliseconds(500);  // between searches of all addresses
constexpr Duration kLongestPause = std::chrono::seconds(30);

}  // namespace

HostWatch::HostWatch(HostWatchOptions options)
    : options_(std::move(options)), cancel_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  MUSTER_CHECK(cancel_.valid());
  for (const record::Host& host : options_.hosts) hosts_[host.name()] = host;
  thread_ = std::jthread([this](const std::stop_token& stop) { Run(stop); });
}

HostWatch::~HostWatch() {
  thread_.request_stop();
  const uint64_t one = 1;
  (void)!::write(cancel_.get(), &one, sizeof one);
  thread_.join();
}

void HostWatch::Add(const std::vector<record::Host>& hosts) {
  const std::lock_guard lock(mutex_);
  added_.insert(added_.end(), hosts.begin(), hosts.end());
}

void HostWatch::SetMissing(std::set<std::string> hosts) {
  const std::lock_guard lock(mutex_);
  missing_ = std::move(hosts);
}

void HostWatch::Run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    std::vector<record::Host> added;
    {
      const std::lock_guard lock(mutex_);
      added.swap(added_);
    }
    for (record::Host& host : added) {
      // Where the inventory has it by now, the next look at that says.
      if (hosts_.emplace(host.name(), host).second) file_ = {};
    }
    // Of a file that is just being written, the next look sees the rest.
    if (const File file = FileState(options_.inventory); file != file_) {
      file_ = file;
      ReadAgain();
    }
    if (inventory_.discover && Now() >= next_discovery_) Discover();
    NameHosts();
    std::set<std::string> missing;
    {
      const std::lock_guard lock(mutex_);
      missing = missing_;
    }
    if (missing != searched_) {
      searched_ = missing;
      next_search_ = Now();
      pause_ = kFirstPause;
    }
    if (!missing.empty() && !addresses_.empty() && Now() >= next_search_) {
      Search(missing);
    } else {
      pollfd cancel{.fd = cancel_.get(), .events = POLLIN, .revents = 0};
      ::poll(&cancel, 1, MillisecondsUntil(Now() + kPollInterval));
    }
  }
}

HostWatch::File HostWatch::FileState(const std::string& path) {
  struct stat state {};
  if (::stat(path.c_str(), &state) != 0) return {};
  return {.changed_ns = state.st_mtim.tv_sec * 1'000'000'000 + state.st_mtim.tv_nsec,
          .inode = state.st_ino,
          .bytes = static_cast<uint64_t>(state.st_size)};
}

void HostWatch::ReadAgain() {
  absl::StatusOr<Inventory> inventory = ReadInventory(options_.inventory, options_.home);
  if (!inventory.ok()) {
    return Warn(Annotate(inventory.status(), "the inventory cannot be read, and is taken as it was before"),
                &inventory_problem_);
  }
  inventory_problem_.clear();
  inventory_ = *std::move(inventory);
  addresses_.clear();
  for (const AddressBlock& block : inventory_.search) {
    const std::vector<std::string> addresses = AddressesIn(block);
    addresses_.insert(addresses_.end(), addresses.begin(), addresses.end());
  }
  next_address_ = 0;
  const bool is_first = inventory_places_.empty();
  if (is_first && inventory_.discover) Discover();
  for (const Host& host : inventory_.hosts) {
    if (host.local || !hosts_.contains(host.name)) continue;
    const record::Host planned = hosts_[host.name];
    const Place place{host.ssh_address, host.ssh_port, host.data_address};
    Place& known = inventory_places_[host.name];
    if (known == place) continue;
    known = place;
    hosts_[host.name].set_ssh_port(static_cast<uint32_t>(host.ssh_port));
    // The job was planned from the file as it was then.
    if (is_first && planned.ssh_address() == host.ssh_address &&
        static_cast<int>(planned.ssh_port()) == host.ssh_port)
      continue;
    // The command knows better than the file where a host is that it names, and may just have failed.
    if (discovered_.contains(host.name)) continue;
    if (is_first && inventory_.discover && discovered_.empty()) continue;
    Hear(host.name, place, "the inventory");
  }
}

void HostWatch::Discover() {
  next_discovery_ = Now() + inventory_.discover->every;
  const auto places = muster::Discover(*inventory_.discover, options_.inventory);
  if (std::exchange(command_fails_, !places.ok()) && !places.ok()) return;
  if (!places.ok()) return options_.warn(std::string(places.status().message()));
  discovered_.clear();
  for (const auto& [name, endpoint] : *places) discovered_.insert(name);
  for (const auto& [name, endpoint] : *places) {
    const auto host = hosts_.find(name);
    if (host == hosts_.end()) continue;
    const int port = endpoint.port != 0 ? endpoint.port : static_cast<int>(host->second.ssh_port());
    const Place place{endpoint.address, port, ""};
    if (std::exchange(discovered_places_[name], place) == place) continue;
    Hear(name, place, "the discovery command");
  }
}

void HostWatch::NameHosts() {
  if (options_.named == nullptr) return;
  std::set<std::string> names = discovered_;
  for (const Host& host : inventory_.hosts) names.insert(host.name);
  if (names.empty() || names == named_) return;
  named_ = names;
  options_.named(std::move(names));
}

void HostWatch::Search(const std::set<std::string>& missing) {
  const auto known = KnownHosts::Load(options_.known_hosts);
  if (!known.ok()) return Warn(known.status(), &known_hosts_problem_);
  known_hosts_problem_.clear();
  std::vector<WantedHost> wanted;
  for (const std::string& name : missing) {
    const auto host = hosts_.find(name);
    if (host == hosts_.end() || host->second.local()) continue;
    if (!host->second.jumps().empty()) continue;  // its addresses are not this machine's to search
    WantedHost one{name, static_cast<uint16_t>(host->second.ssh_port()), known->KeysOf(name)};
    if (!one.keys.empty()) wanted.push_back(std::move(one));  // else nobody could tell that it is the one
  }
  const std::span<const std::string> slice =
      std::span(addresses_)
          .subspan(next_address_, std::min(kSliceAddresses, addresses_.size() - next_address_));
  (void)SearchForHosts(
      slice, wanted, cancel_.get(), [&](const std::string& name, const std::string& address) {
        Hear(name, {address, static_cast<int>(hosts_[name].ssh_port()), ""}, "a search for its key");
      });
  next_address_ += slice.size();
  if (next_address_ < addresses_.size()) return;
  next_address_ = 0;
  next_search_ = Now() + pause_;
  pause_ = std::min<Duration>(2 * pause_, kLongestPause);
}

void HostWatch::Hear(const std::string& host, const Place& place, const std::string& source) {
  options_.sighted({.host = host,
                    .ssh_address = place.ssh_address,
                    .ssh_port = static_cast<uint16_t>(place.ssh_port),
                    .data_address = place.data_address,
                    .source = source});
}

void HostWatch::Warn(const absl::Status& problem, std::string* said) {
  std::string text(problem.message());
  if (text == *said) return;
  *said = text;
  options_.warn(std::move(text));
}

}  // namespace muster
