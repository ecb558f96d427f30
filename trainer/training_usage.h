// What a task takes of its host's processors and network while it trains.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "base/clock.h"

namespace muster {

struct NetworkBytes {
  uint64_t received = 0;
  uint64_t sent = 0;
};

/// Of one interface in the text of /proc/net/dev. Unset: it is not there.
std::optional<NetworkBytes> ParseNetworkBytes(std::string_view text, std::string_view interface);

/// The interface of this host that has the address, "10.0.0.1:2222" or "[fd00::1]:2222". Empty: none has it,
/// or the loopback has: what goes over that is no network.
std::string InterfaceOfAddress(const std::string& address);

/// Of this process, in seconds of a processor.
double ProcessCpuSeconds();

struct TrainingUsage {
  double seconds = 0;
  double cpu_seconds = 0;               // of this process, all of its threads
  std::optional<NetworkBytes> network;  // of the interface, whoever sent or received them
};

/// Between the first mark and the last one. Any thread may call any method.
class UsageMeter {
 public:
  /// `interface`: its bytes are counted; empty: none.
  explicit UsageMeter(std::string interface) : interface_(std::move(interface)) {}

  void Mark();

  /// Unset before the second mark.
  std::optional<TrainingUsage> usage() const;

 private:
  struct Reading {
    TimePoint time;
    double cpu_seconds = 0;
    std::optional<NetworkBytes> network;
  };
  Reading Read() const;

  const std::string interface_;
  mutable std::mutex mutex_;
  std::optional<Reading> first_, last_;
};

/// Marks for a task that is not told when training begins and ends: where what `progress` returns has grown
/// since it looked last, from its first growth on. A thread of its own calls that twenty times a second.
class UsageWatch {
 public:
  /// Both live longer.
  UsageWatch(UsageMeter* meter, std::function<uint64_t()> progress);

 private:
  const std::function<uint64_t()> progress_;
  std::jthread thread_;
};

}  // namespace muster
