#include "launcher/bench/host_use.h"

#include <algorithm>

namespace muster::bench {
namespace {

HostUse* Find(const std::string& host, std::vector<HostUse>* hosts) {
  const auto found =
      std::find_if(hosts->begin(), hosts->end(), [&](const HostUse& use) { return use.host == host; });
  return found != hosts->end() ? &*found : nullptr;
}

double MeanWith(double mean, size_t count, double value) {
  return mean + (value - mean) / static_cast<double>(count + 1);
}

std::optional<double> MeanWith(std::optional<double> mean, size_t count, std::optional<double> value) {
  return mean && value ? MeanWith(*mean, count, *value) : value;
}

}  // namespace

std::vector<HostUse> HostUses(const std::vector<TaskUse>& tasks) {
  std::vector<HostUse> hosts;
  for (const TaskUse& task : tasks) {
    if (task.seconds <= 0) continue;
    HostUse* host = Find(task.host, &hosts);
    if (host == nullptr) host = &hosts.emplace_back(HostUse{.host = task.host});
    host->tasks += (host->tasks.empty() ? "" : ", ") + task.task;
    host->busy_processors += task.cpu_seconds / task.seconds;
    const auto rate = [&](std::optional<double> bytes) {
      return bytes ? std::optional(*bytes / task.seconds) : std::nullopt;
    };
    if (!host->sent_bytes_per_second) host->sent_bytes_per_second = rate(task.sent_bytes);
    if (!host->received_bytes_per_second) host->received_bytes_per_second = rate(task.received_bytes);
  }
  return hosts;
}

double ReceivedBytesPerStep(Strategy strategy, double received_bytes, double steps, double reduced_bytes) {
  if (strategy == Strategy::kAllReduce) return received_bytes / steps;
  const double from_servers = std::max(0.0, received_bytes - steps * reduced_bytes);
  return reduced_bytes + from_servers / (steps + 1);
}

void AddRepetition(const std::vector<HostUse>& hosts, size_t count, std::vector<HostUse>* mean) {
  std::vector<HostUse> with = hosts;
  for (HostUse& host : with) {
    const HostUse* before = Find(host.host, mean);
    if (before == nullptr) continue;
    host.busy_processors = MeanWith(before->busy_processors, count, host.busy_processors);
    host.sent_bytes_per_second = MeanWith(before->sent_bytes_per_second, count, host.sent_bytes_per_second);
    host.received_bytes_per_second =
        MeanWith(before->received_bytes_per_second, count, host.received_bytes_per_second);
  }
  *mean = std::move(with);
}

}  // namespace muster::bench
