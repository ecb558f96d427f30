// Convolutions on a CUDA device: products of matrices whose one factor, the patches of the images, is never
// written down (implicit GEMM).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/math.h"

namespace muster::cuda {

/// A convolution with stride 1. Images are [samples, height, width, channels], row-major, and have zeros
/// around them; weights [kernel, kernel, channels, outputs].
struct ConvolutionGeometry {
  int64_t samples = 0;
  int64_t height = 0;  // of the input
  int64_t width = 0;
  int64_t channels = 0;
  int64_t output_height = 0;
  int64_t output_width = 0;
  int64_t outputs = 0;  // channels of the output
  int64_t kernel = 0;
  int64_t before = 0;  // rows and columns of zeros before the image; as many after it as are needed

  int64_t pixels() const { return samples * output_height * output_width; }
  int64_t terms() const { return kernel * kernel * channels; }  // of the sum of one output
};

/// 2^30 or more values of input, output or weights, with one bias for each output: refused by the functions
/// below.
bool IsTooLarge(const ConvolutionGeometry& geometry);

/// The convolution that makes the gradient of the input out of the gradient of the output, with TurnWeights.
ConvolutionGeometry InputGradientGeometry(const ConvolutionGeometry& geometry);

/// turned [kernel, kernel, outputs, channels]: the weights upside down and left to right.
cudaError_t TurnWeights(const ConvolutionGeometry& geometry, const float* weights, float* turned,
                        cudaStream_t stream);

/// output [samples, output_height, output_width, outputs] = convolution of input with weights, plus bias
/// [outputs] unless that is null, then ReLU if asked for. Bfloat16 computes as TF32 does, a GPU before 8.0 in
/// float whatever is asked for.
cudaError_t ConvolutionForward(const ConvolutionGeometry& geometry, Math math, const float* input,
                               const float* weights, const float* bias, bool relu, float* output,
                               cudaStream_t stream);

/// Whether ConvolutionPoolForward has code for these: windows cover the output, and have 1, 4, 16 or 64
/// pixels.
bool PoolsAtOnce(const ConvolutionGeometry& geometry, int64_t window);

/// ConvolutionForward without ReLU and MaxPoolForward of its output at once, with the same bits; only what
/// the pooling gives, and winners unless that is null, is written. Where not PoolsAtOnce, it is refused.
cudaError_t ConvolutionPoolForward(const ConvolutionGeometry& geometry, Math math, const float* input,
                                   const float* weights, const float* bias, int64_t window, bool relu,
                                   float* output, uint8_t* winners, cudaStream_t stream);

/// Floats of scratch memory that ConvolutionParameterGradient needs, with so many samples or fewer.
int64_t ConvolutionScratchSize(const ConvolutionGeometry& geometry);

/// weights_gradient [kernel, kernel, channels, outputs] and bias_gradient [outputs], the sums over the
/// samples, from output_gradient, that before ReLU.
cudaError_t ConvolutionParameterGradient(const ConvolutionGeometry& geometry, Math math, const float* input,
                                         const float* output_gradient, float* scratch,
                                         float* weights_gradient, float* bias_gradient, cudaStream_t stream);

}  // namespace muster::cuda
