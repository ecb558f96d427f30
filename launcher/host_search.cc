#include "launcher/host_search.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "base/file.h"
#include "launcher/fleet.h"
#include "launcher/transport/ssh_session.h"

namespace muster {
namespace {

constexpr size_t kConnectThreads = 256;  // most addresses of a network answer nothing, and are waited for
constexpr Duration kConnectTimeout = std::chrono::milliseconds(1000);
constexpr Duration kKeyTimeout = std::chrono::seconds(3);

class Search {
 public:
  Search(std::span<const std::string> addresses, const std::vector<WantedHost>& hosts, int cancel_fd,
         const std::function<void(const std::string&, const std::string&)>& found)
      : hosts_(hosts), cancel_fd_(cancel_fd), found_(found), missing_(hosts.size()) {
    for (const WantedHost& host : hosts) {
      std::set<std::string>& types = key_types_[host.port];
      for (const HostKey& key : host.keys) types.insert(key.type);
    }
    for (const auto& [port, types] : key_types_) {
      for (const std::string& address : addresses) places_.push_back({address, port});
    }
  }

  absl::Status Run() {
    OnThreads(std::min(kConnectThreads, places_.size()), [this] { Work(); });
    return was_cancelled_ ? Cancelled("the search was given up") : absl::OkStatus();
  }

 private:
  struct Place {
    std::string address;
    uint16_t port;
  };

  void Work() {
    while (const std::optional<Place> place = Next()) Try(*place);
  }

  std::optional<Place> Next() {
    const std::lock_guard lock(mutex_);
    if (next_ == places_.size() || missing_ == 0 || was_cancelled_) return std::nullopt;
    return places_[next_++];
  }

  // A host shows one key each time, and the one that is known may be of another type.
  void Try(const Place& place) {
    std::set<std::string> shown;  // types
    for (const std::string& type : key_types_.at(place.port)) {
      if (shown.contains(type)) continue;
      auto connection = ConnectTcp(place.address, place.port, kKeyTimeout, Within(kConnectTimeout));
      if (!connection.ok()) return Note(connection.status());
      const auto key = AskHostKey(*std::move(connection), type, Within(kKeyTimeout));
      if (!key.ok()) return Note(key.status());
      if (Match(place, *key)) return;
      shown.insert(key->type);
    }
  }

  // Says whose key it is; false: of none that is wanted.
  bool Match(const Place& place, const HostKey& key) {
    const std::lock_guard lock(mutex_);
    bool matches = false;
    for (const WantedHost& host : hosts_) {
      if (host.port != place.port || std::ranges::find(host.keys, key) == host.keys.end()) continue;
      if (names_.insert(host.name).second) --missing_;
      found_(host.name, place.address);
      matches = true;
    }
    return matches;
  }

  // Most addresses have nothing to say.
  void Note(const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    was_cancelled_ = was_cancelled_ || absl::IsCancelled(status);
  }

  Limits Within(Duration timeout) const { return {.deadline = Now() + timeout, .cancel_fd = cancel_fd_}; }

  const std::vector<WantedHost>& hosts_;
  const int cancel_fd_;
  const std::function<void(const std::string&, const std::string&)>& found_;
  std::vector<Place> places_;
  std::map<uint16_t, std::set<std::string>> key_types_;  // of the wanted hosts, by port
  std::mutex mutex_;                                     // guards the following, and calls of found_
  size_t next_ = 0;                                      // of places_
  size_t missing_;
  std::set<std::string> names_;  // that were found
  bool was_cancelled_ = false;
};

}  // namespace

absl::Status SearchForHosts(std::span<const std::string> addresses, const std::vector<WantedHost>& hosts,
                            int cancel_fd,
                            const std::function<void(const std::string&, const std::string&)>& found) {
  return Search(addresses, hosts, cancel_fd, found).Run();
}

}  // namespace muster
