#include "kernels/dropout_reference.h"

namespace muster {

double ReferenceDropoutFactor(const Dropout& dropout, int64_t position, int64_t unit) {
  const uint64_t high = uint64_t{1} << 32, four = unit / 4, at = position;
  const auto words =
      Philox({static_cast<uint32_t>(four % high), static_cast<uint32_t>(four / high),
              static_cast<uint32_t>(at % high), static_cast<uint32_t>(at / high)},
             {static_cast<uint32_t>(dropout.seed % high), static_cast<uint32_t>(dropout.seed / high)});
  // Words are whole numbers: to be below the rounded bound is to be at least half below the exact one.
  const double bound = double{dropout.rate} * static_cast<double>(high);
  return words[unit % 4] + 0.5 <= bound ? 0 : 1 / (1 - double{dropout.rate});
}

}  // namespace muster
