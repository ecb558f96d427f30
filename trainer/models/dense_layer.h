// A fully connected layer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/dense.h"
#include "trainer/models/layer.h"

namespace muster {

struct DenseLayerOptions {
  std::string name;  // its tensors are name/weights [inputs, outputs] and name/bias [outputs]
  int64_t inputs = 0;
  int64_t outputs = 0;
  Activation activation = Activation::kNone;
  Initializer weights_initializer = Initializer::kZeros;  // the bias starts at zero
  float weights_scale = 0;
};

std::unique_ptr<Layer> MakeDenseLayer(const DenseLayerOptions& options);

}  // namespace muster
