// Which optimizers there are. By itself, because code for CUDA includes plain C++ only.
#pragma once

#include <cstdint>

namespace muster {

/// With p a parameter, rate the learning rate of the update, and g its gradient. To the gradient all but ftrl
/// add weight_decay p, the gradient of an L2 penalty, as Caffe and PyTorch's SGD do; so Adam's moments see it
/// too, other than in AdamW. All read learning_rate and schedule.
enum class OptimizerKind : uint8_t {
  /// p -= rate g. Reads weight_decay.
  kSgd = 0,

  /// Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015, algorithm 1. Reads weight_decay,
  /// beta1, beta2, epsilon.
  kAdam = 1,

  /// The heavy ball as PyTorch has it: v = momentum v + g; p -= rate v, or with nesterov
  /// p -= rate (g + momentum v). The rate is outside of v; in Caffe it is inside, which is the same as
  /// long as it is constant. Reads weight_decay, momentum, nesterov.
  kMomentum = 2,

  /// Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and stochastic optimization",
  /// JMLR 2011, as TensorFlow has it: a starts at initial_accumulator; a += g^2; p -= rate g / sqrt(a). Reads
  /// weight_decay, initial_accumulator.
  kAdagrad = 3,

  /// FTRL-Proximal: McMahan et al., "Ad click prediction: a view from the trenches", KDD 2013, algorithm 1,
  /// with TensorFlow's constants (FtrlOptimizer, learning_rate_power -0.5): n starts at initial_accumulator,
  /// which stands for the paper's beta, and l2 counts twice (the penalty is l2 p^2). z starts at 0, as if the
  /// parameters did. Two differences: a parameter whose gradient is 0 keeps its value, as in the paper, where
  /// TensorFlow's dense update computes it again (which matters only until its first gradient); and the
  /// rate must be constant, because z holds what earlier rates made of the parameters. Reads l1, l2,
  /// initial_accumulator.
  kFtrl = 4,
};

}  // namespace muster
