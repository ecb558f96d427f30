// The weights' gradient of a layer with few outputs: the last layer of a classifier, or all of a softmax
// regression.
//
// oneDNN's matrix product fills its blocks of registers badly with ten outputs: at 784 x 10, batch 100, on
// one thread with AVX2, it takes 35 us where this takes 21. The forward product and the input's gradient were
// tried too and gain nothing.
#pragma once

#include "kernels/dense.h"

namespace muster {

/// Whether NarrowBackwardWeights is the faster way; it takes any shape with at most 16 outputs.
bool IsNarrow(const DenseShape& shape);

/// weights_gradient [inputs, outputs] = input^T [inputs, batch] * output_gradient [batch, outputs]. One
/// thread; nothing is allocated. Sums are in order of the batch. Its bits are those of the instruction set,
/// which is the one that oneDNN uses.
void NarrowBackwardWeights(const DenseShape& shape, const float* input, const float* output_gradient,
                           float* weights_gradient);

}  // namespace muster
