// Between the hosts of an inventory and those of a job's record.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "inventory/inventory.h"
#include "proto/job_record.pb.h"

namespace muster {

/// How the host is reached, without an address for data and anything to run.
record::Host RecordOf(const Host& host);

/// The host that the record was made of, where it is now, without its labels, slots and GPUs.
Host HostOf(const record::Host& record);

/// All hosts of the inventory, as RecordOf has them.
std::vector<record::Host> AllHosts(const Inventory& inventory);

/// For all names of an inventory.
inline constexpr Duration kLookupsTimeout = std::chrono::seconds(10);

/// The address, as a literal, under which other hosts reach this one's tasks. InvalidArgument: nobody knows
/// it.
absl::StatusOr<std::string> FindDataAddress(const Host& host, TimePoint deadline);

}  // namespace muster
