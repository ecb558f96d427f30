// What a process that does nothing is doing.
#pragma once

#include <sys/types.h>

#include <string>

namespace muster {

/// Of all processes below `ancestor` and their threads, a line each: state, where they wait in the kernel,
/// and, where this account may read them, the system call and the kernel's stack. As of now, while they run
/// on; at most some hundred lines. One pass over /proc.
std::string DescribeDescendants(pid_t ancestor);

}  // namespace muster
