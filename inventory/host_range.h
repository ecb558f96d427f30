// Host names with ranges, as Ansible writes them: "ps-[01:03]" is ps-01, ps-02, ps-03, "r[a:c]" ra, rb, rc,
// and "n[1:7:3]" n1, n4, n7.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"

namespace muster {

inline constexpr size_t kMaxHosts = 4096;

/// All names that `pattern` stands for, the last range counting fastest. A range [first:last] includes both
/// ends (with a step, the last as far as that reaches it); a first with leading zeros fixes the width, and
/// last must have the same. InvalidArgument (without a position): brackets that do not match or hold no
/// range, a range that goes backwards, more than kMaxHosts names, a name with characters a host name has not.
absl::StatusOr<std::vector<std::string>> ExpandHostNames(const std::string& pattern);

}  // namespace muster
