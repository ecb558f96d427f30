// The convolution of convolution.h in double, without activation and pooling, as plainly as can be. For
// tests.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/convolution.h"
#include "kernels/dense_reference.h"

namespace muster {

/// [samples, convolved_height, convolved_width, outputs].
std::vector<double> ReferenceConvolutionForward(const ConvolutionShape& shape, int64_t samples,
                                                std::span<const double> input,
                                                std::span<const double> weights,
                                                std::span<const double> bias);

/// From the gradient of what the forward pass gives.
ReferenceGradients ReferenceConvolutionBackward(const ConvolutionShape& shape, int64_t samples,
                                                std::span<const double> input,
                                                std::span<const double> weights,
                                                std::span<const double> output_gradient);

}  // namespace muster
