// How many files and connections a process may have at a time.
#pragma once

namespace muster {

/// The usual soft limit of 1024 is there for programs that use select(): raises it to 65536, or as far as the
/// hard one goes.
void RaiseDescriptorLimit();

}  // namespace muster
