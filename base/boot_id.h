// Which start of this machine it is.
#pragma once

#include <string>

namespace muster {

/// Names this boot of the machine; "" where the kernel does not tell.
std::string BootId();

}  // namespace muster
