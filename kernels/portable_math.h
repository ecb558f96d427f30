// Functions of libm whose bits are the same on every machine.
//
// libm's own differ between its versions. These use additions, multiplications and divisions in double only,
// which IEEE 754 rounds correctly; the kernels are compiled without contraction. They are for the few factors
// of a step, not for loops.
#pragma once

namespace muster {

/// e^x for any x but NaN, with a relative error of at most 2^-51 + |x| 2^-53. Below the normal numbers 0,
/// above the finite ones infinity.
double PortableExp(double x);

/// The natural logarithm of a finite normal x > 0, with a relative error of at most 2^-50.
double PortableLog(double x);

/// base^exponent for a finite normal base > 0 and a finite exponent, with a relative error of at most
/// 2^-50 (1 + |log result|); 1 if either makes it so. Range as PortableExp.
double PortablePow(double base, double exponent);

/// sin(pi x) for 0 <= x <= 1/2, with a relative error of at most 2^-50.
double PortableSinPi(double x);

}  // namespace muster
