// Between the hosts of an inventory and those of a job's record.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "inventory/inventory.h"
#include "proto/job_record.pb.h"

namespace muster {

/// How the host is reached, without an address for data.
record::Host RecordOf(const Host& host);

/// The host that the record was made of, where it is now, without its labels, slots and GPUs.
Host HostOf(const record::Host& record);

/// All hosts of the inventory, as RecordOf has them.
std::vector<record::Host> AllHosts(const Inventory& inventory);

/// Those of a job, spare ones too.
std::vector<record::Host> AllHosts(const record::JobRecord& record);

/// For all names of an inventory.
inline constexpr Duration kLookupsTimeout = std::chrono::seconds(10);

/// With the address, as a literal, under which other hosts reach its tasks. InvalidArgument: nobody knows it.
absl::StatusOr<record::Host> ResolvedRecordOf(const Host& host, TimePoint deadline);

/// InvalidArgument: other hosts do not reach it there.
absl::Status CheckReachable(const record::Host& host);

}  // namespace muster
