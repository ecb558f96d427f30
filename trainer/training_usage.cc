#include "trainer/training_usage.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <condition_variable>
#include <cstring>
#include <ctime>
#include <fstream>
#include <memory>
#include <sstream>
#include <vector>

#include "cluster/cluster_spec.h"

namespace muster {
namespace {

constexpr Duration kLookEvery = std::chrono::milliseconds(50);

std::string TextOf(const sockaddr& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.sa_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text, sizeof text);
  } else if (address.sa_family == AF_INET6) {
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, text, sizeof text);
  }
  return text;
}

}  // namespace

std::optional<NetworkBytes> ParseNetworkBytes(std::string_view text, std::string_view interface) {
  for (const auto line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(line, absl::MaxSplits(':', 1));
    const absl::string_view name = absl::StripLeadingAsciiWhitespace(parts.first);
    if (std::string_view(name.data(), name.size()) != interface) continue;
    const std::vector<absl::string_view> fields = absl::StrSplit(parts.second, ' ', absl::SkipEmpty());
    NetworkBytes bytes;
    // Eight fields of what was received, then those of what was sent.
    if (fields.size() < 16 || !absl::SimpleAtoi(fields[0], &bytes.received) ||
        !absl::SimpleAtoi(fields[8], &bytes.sent)) {
      return std::nullopt;
    }
    return bytes;
  }
  return std::nullopt;
}

std::string InterfaceOfAddress(const std::string& address) {
  const std::string host = HostOfAddress(address);
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(first, ::freeifaddrs);
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_LOOPBACK) != 0) continue;
    if (TextOf(*entry->ifa_addr) == host) return entry->ifa_name;
  }
  return "";
}

double ProcessCpuSeconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

UsageMeter::Reading UsageMeter::Read() const {
  Reading reading{.time = Now(), .cpu_seconds = ProcessCpuSeconds()};
  if (interface_.empty()) return reading;
  std::ostringstream text;
  text << std::ifstream("/proc/self/net/dev").rdbuf();
  reading.network = ParseNetworkBytes(text.str(), interface_);
  return reading;
}

void UsageMeter::Mark() {
  const Reading reading = Read();
  const std::lock_guard lock(mutex_);
  (first_ ? last_ : first_) = reading;
}

std::optional<TrainingUsage> UsageMeter::usage() const {
  const std::lock_guard lock(mutex_);
  if (!last_) return std::nullopt;
  TrainingUsage usage{.seconds = ToSeconds(last_->time - first_->time),
                      .cpu_seconds = last_->cpu_seconds - first_->cpu_seconds};
  if (first_->network && last_->network) {
    usage.network = {.received = last_->network->received - first_->network->received,
                     .sent = last_->network->sent - first_->network->sent};
  }
  return usage;
}

UsageWatch::UsageWatch(UsageMeter* meter, std::function<uint64_t()> progress)
    : progress_(std::move(progress)), thread_([this, meter](const std::stop_token& stop) {
        std::mutex mutex;
        std::condition_variable_any stopped;
        std::unique_lock lock(mutex);
        for (uint64_t seen = 0; !stop.stop_requested();) {
          if (const uint64_t now = progress_(); now != seen) {
            meter->Mark();
            seen = now;
          }
          stopped.wait_for(lock, stop, kLookEvery, [] { return false; });
        }
      }) {}

}  // namespace muster
