// How many files and connections a process may have at a time.
#pragma once

namespace muster {

/// The usual soft limit of 1024 is there for programs that use select(): raises it to 65536, or as far as the
/// hard one goes. Once, before there are threads. What Process::Spawn starts has the limit of before.
void RaiseDescriptorLimit();

/// As it was before it was raised, if it was. Async-signal-safe.
void RestoreDescriptorLimit();

}  // namespace muster
