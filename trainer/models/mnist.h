// The models of MNIST's images: mnist_softmax and mnist_mlp.
#pragma once

#include "base/status.h"
#include "trainer/models/model.h"

namespace muster {

/// Softmax regression 784-10 from zeros (TensorFlow examples/tutorials/mnist/mnist_softmax.py).
absl::StatusOr<ModelRecipe> MnistSoftmax(const ModelConfig& config);

/// 784-hidden...-10 with ReLU; weights truncated normal with deviation 1/sqrt(inputs of the layer); hidden is
/// {100} by default (TensorFlow tools/dist_test/python/mnist_replica.py, whose loss is a sum over the batch
/// where ours is the mean).
absl::StatusOr<ModelRecipe> MnistMlp(const ModelConfig& config);

}  // namespace muster
