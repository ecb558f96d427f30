// The models of MNIST's images: mnist_softmax, mnist_mlp and mnist_cnn.
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

/// Convolutional networks. Variant `lenet`: conv 5x5x20, max pool 2, conv 5x5x50, max pool 2, 500 ReLU, 10;
/// convolutions valid and linear, weights uniform with the variance 1 / inputs of a unit (BVLC/caffe
/// examples/mnist/lenet_train_test.prototxt). Variant `deep`: conv 5x5x32 same ReLU, max pool 2, conv 5x5x64
/// same ReLU, max pool 2, 1024 ReLU, dropout 0.5, 10; weights truncated normal with deviation 0.1, biases 0.1
/// (TensorFlow examples/tutorials/mnist/mnist_deep.py).
absl::StatusOr<ModelRecipe> MnistCnn(const ModelConfig& config);

}  // namespace muster
