#include "launcher/fleet.h"

#include <algorithm>
#include <atomic>
#include <thread>

namespace muster {

std::vector<absl::Status> OnEachHost(size_t count, size_t at_once,
                                     const std::function<absl::Status(size_t)>& ask) {
  std::vector<absl::Status> statuses(count);
  std::atomic<size_t> next = 0;
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < std::min(count, at_once); ++i) {
    threads.emplace_back([&] {
      for (size_t host = next++; host < count; host = next++) statuses[host] = ask(host);
    });
  }
  threads.clear();  // joins
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
