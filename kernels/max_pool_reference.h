// The pooling of max_pool.h in double, without activation, as plainly as can be. For tests. The input is
// [samples, height, width, channels].
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/max_pool.h"

namespace muster {

struct ReferencePooled {
  std::vector<double> output;
  std::vector<int64_t> winners;  // where each value of the output stands in the whole input
};

ReferencePooled ReferenceMaxPoolForward(const MaxPoolShape& shape, int64_t samples,
                                        std::span<const double> input);

std::vector<double> ReferenceMaxPoolBackward(const MaxPoolShape& shape, int64_t samples,
                                             std::span<const double> output_gradient,
                                             std::span<const int64_t> winners);

}  // namespace muster
