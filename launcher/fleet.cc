#include "launcher/fleet.h"

#include <algorithm>
#include <atomic>
#include <latch>
#include <system_error>
#include <thread>

namespace muster {

void OnThreads(size_t count, const std::function<void()>& work) {
  std::latch all_are_there(1);
  size_t needed = count;
  std::vector<std::jthread> threads;
  try {
    for (size_t i = 0; i < count; ++i) {
      threads.emplace_back([&, i] {
        all_are_there.wait();
        if (i < needed) work();
      });
    }
  } catch (const std::system_error&) {
    // This account may have no more of them: half of those there are do it, since it may take threads itself.
    needed = (threads.size() + 1) / 2;
  }
  all_are_there.count_down();
  if (threads.empty()) work();
  threads.clear();  // joins
}

std::vector<absl::Status> OnEachHost(size_t count, size_t at_once,
                                     const std::function<absl::Status(size_t)>& ask) {
  std::vector<absl::Status> statuses(count);
  std::atomic<size_t> next = 0;
  OnThreads(std::min(count, at_once), [&] {
    for (size_t host = next++; host < count; host = next++) statuses[host] = ask(host);
  });
  return statuses;
}

std::vector<absl::Status> AskHosts(const std::vector<record::Host>& hosts, const ConnectOptions& options,
                                   Duration connect_timeout,
                                   const std::function<absl::Status(size_t, AgentConnection&)>& ask) {
  return OnEachHost(hosts.size(), hosts.size(), [&](size_t i) {
    const auto connection = AgentConnection::Connect(hosts[i], options, Now() + connect_timeout);
    return connection.ok() ? ask(i, **connection) : connection.status();
  });
}

absl::Status FirstFailure(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace muster
