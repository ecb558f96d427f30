// HostWatch: a thread that hears of hosts at other addresses, and of other hosts: from the inventory, when
// the file changes, from its discovery command, and, for hosts that are missing, by a search for their keys.
//
// Names in DNS need no watching: they are looked up for each connection.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "inventory/inventory.h"
#include "proto/job_record.pb.h"

namespace muster {

/// Where a host may be, as somebody says.
struct HostSighting {
  std::string host;
  std::string ssh_address;
  uint16_t ssh_port = 22;
  std::string data_address;  // "": wherever SSH reaches it
  std::string source;        // for people: "the inventory"
};

struct HostWatchOptions {
  std::string inventory;              // its path
  std::string home;                   // what "~" stands for in it
  std::filesystem::path known_hosts;  // with the keys of the hosts
  std::vector<record::Host> hosts;    // to be watched
  /// Called on threads of the watch, one call after the other; must not block.
  std::function<void(HostSighting)> sighted;
  /// Likewise, with the names of all hosts of the inventory, once they are known, and whenever others come or
  /// go. Null: nobody wants them.
  std::function<void(std::set<std::string>)> named;
  /// A file that cannot be read any more; a command that fails, once until it has worked again, whatever it
  /// then says of the failure.
  std::function<void(std::string)> warn;
};

class HostWatch {
 public:
  explicit HostWatch(HostWatchOptions options);
  /// Gives up a search, waits for a discovery command that runs, at most 5 s, and joins the thread.
  ~HostWatch();

  /// Any thread: these are to be watched, too, as far as they are not.
  void Add(const std::vector<record::Host>& hosts);

  /// Any thread: the hosts that were there and are not reached now, which are searched for, in ranges of the
  /// inventory, until they are not named here any more.
  void SetMissing(std::set<std::string> hosts);

 private:
  struct File {
    int64_t changed_ns = 0;
    uint64_t inode = 0, bytes = 0;
    bool operator==(const File&) const = default;
  };
  struct Place {
    std::string ssh_address;
    int ssh_port = 0;
    std::string data_address;
    bool operator==(const Place&) const = default;
  };

  void Run(const std::stop_token& stop);
  static File FileState(const std::string& path);
  void ReadAgain();
  void Discover();
  void Search(const std::set<std::string>& missing);
  void NameHosts();
  void Hear(const std::string& host, const Place& place, const std::string& source);
  void Warn(const absl::Status& problem, std::string* said);

  const HostWatchOptions options_;
  UniqueFd cancel_;  // readable when the watch is being destroyed
  std::mutex mutex_;
  std::set<std::string> missing_;    // guarded by mutex_
  std::vector<record::Host> added_;  // likewise

  // The thread's.
  std::map<std::string, record::Host> hosts_;  // by name
  File file_;
  Inventory inventory_;                             // as it was read last
  std::map<std::string, Place> inventory_places_;   // by name
  std::map<std::string, Place> discovered_places_;  // by name
  std::set<std::string> discovered_;                // all that the command has named last
  std::optional<std::set<std::string>> named_;      // what has been said
  TimePoint next_discovery_;
  std::vector<std::string> addresses_;  // to be searched
  size_t next_address_ = 0;             // goes round: hosts that come and go do not begin it again
  TimePoint next_search_;
  Duration pause_{};  // before the search after the next
  std::set<std::string> searched_;
  std::string inventory_problem_, known_hosts_problem_;  // as said last
  bool command_fails_ = false;                           // which has been said

  std::jthread thread_;  // last: it uses all of the above
};

}  // namespace muster
