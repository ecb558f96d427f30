// The mask of dropout.h, as plainly as can be. For tests.
#pragma once

#include <cstdint>

#include "kernels/dropout.h"

namespace muster {

double ReferenceDropoutFactor(const Dropout& dropout, int64_t position, int64_t unit);

}  // namespace muster
