#include "kernels/portable_math.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/status.h"

namespace muster {
namespace {

// log 2 in two parts. The first has 32 bits, so that its product with an exponent is exact.
constexpr double kLog2High = 0x1.62e42feep-1;
constexpr double kLog2Low = 0x1.a39ef35793c76p-33;
constexpr double kInverseLog2 = 0x1.71547652b82fep+0;
constexpr double kPi = 0x1.921fb54442d18p+1;

double PowerOfTwo(int exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

}  // namespace

double PortableExp(double x) {
  MUSTER_CHECK(x == x);
  constexpr double kLargest = 709.78, kSmallest = -708.39;  // the results are normal numbers in between
  if (x > kLargest) return std::numeric_limits<double>::infinity();
  if (x < kSmallest) return 0;
  const double n = std::floor(x * kInverseLog2 + 0.5);
  const double r = (x - n * kLog2High) - n * kLog2Low;  // |r| <= log(2)/2, or hardly more
  // Taylor. What is left out, r^14/14! and on, is below 2^-57.
  constexpr int kTerms = 13;
  double sum = 1;
  for (int i = kTerms; i > 0; --i) sum = 1 + r / i * sum;
  // In two factors, because 2^1024 is no double.
  const int exponent = static_cast<int>(n);
  return sum * PowerOfTwo(exponent / 2) * PowerOfTwo(exponent - exponent / 2);
}

double PortableLog(double x) {
  MUSTER_CHECK(x >= std::numeric_limits<double>::min() && x <= std::numeric_limits<double>::max());
  // x = 2^exponent m with m in [sqrt(1/2), sqrt(2)), so that nothing cancels in the sum at the end.
  constexpr uint64_t kMantissa = (uint64_t{1} << 52) - 1;
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  int exponent = static_cast<int>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & kMantissa) | std::bit_cast<uint64_t>(1.0));
  if (m >= 0x1.6a09e667f3bcdp+0) {
    m /= 2;
    ++exponent;
  }
  // log m = 2 artanh s, s = (m - 1) / (m + 1), |s| < 0.172. What the series leaves out, s^22/23 and on, is
  // below 2^-60.
  const double s = (m - 1) / (m + 1);
  const double square = s * s;
  constexpr int kLastPower = 21;
  double sum = 0;
  for (int i = kLastPower; i > 1; i -= 2) sum = (1.0 / i + sum) * square;
  const double log_m = 2 * s + 2 * s * sum;
  return exponent * kLog2High + (exponent * kLog2Low + log_m);
}

double PortablePow(double base, double exponent) { return PortableExp(exponent * PortableLog(base)); }

double PortableSinPi(double x) {
  MUSTER_CHECK(x >= 0 && x <= 0.5);
  // Taylor on [0, pi/4]; from there on the cosine of what is missing to pi/2. What is left out is below
  // 2^-62.
  const bool is_cosine = x > 0.25;
  const double angle = kPi * (is_cosine ? 0.5 - x : x);
  const double square = angle * angle;
  constexpr int kLastPower = 18;
  double sum = 1;
  for (int i = is_cosine ? kLastPower : kLastPower + 1; i > 1; i -= 2) {
    sum = 1 - square / (i * (i - 1)) * sum;
  }
  return is_cosine ? sum : angle * sum;
}

}  // namespace muster
