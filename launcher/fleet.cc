#include "launcher/fleet.h"

#include <thread>

namespace muster {

std::vector<absl::Status> AskHosts(const std::vector<record::Host>& hosts, const ConnectOptions& options,
                                   Duration connect_timeout,
                                   const std::function<absl::Status(size_t, AgentConnection&)>& ask) {
  std::vector<absl::Status> statuses(hosts.size());
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < hosts.size(); ++i) {
    threads.emplace_back([&, i] {
      const auto connection = AgentConnection::Connect(hosts[i], options, Now() + connect_timeout);
      statuses[i] = connection.ok() ? ask(i, **connection) : connection.status();
    });
  }
  threads.clear();  // joins
  return statuses;
}

absl::Status FirstFailure(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace muster
