// Models: a loss and its gradient as functions of one flat parameter buffer and a batch.
//
// To add a model: a file beside mnist.cc that describes it, and a row in the table of model.cc.
#pragma once

#include <absl/functional/function_ref.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "kernels/optimizer.h"
#include "kernels/parameter_layout.h"
#include "trainer/data/batch.h"
#include "trainer/data/census_columns.h"
#include "trainer/models/model_spec.h"

namespace muster {

/// Which model. What is empty takes the model's default.
struct ModelConfig {
  std::string model;            // "mnist_softmax", "mnist_mlp", "mnist_cnn", "wide_deep"
  std::string variant;          // for models that have variants
  std::vector<int64_t> hidden;  // sizes of hidden layers, for models that have them
};

/// How a model is trained unless something else is asked for.
struct TrainDefaults {
  OptimizerConfig optimizer;                      // with its learning rate
  std::optional<OptimizerConfig> wide_optimizer;  // of group 1, if the model has that
  int64_t batch_size = 0;                         // per worker
  int64_t global_batch_size = 0;                  // over all workers, instead of batch_size if it is not 0
  int64_t train_steps = 0;
};

/// A model and how it is trained.
struct ModelRecipe {
  ModelSpec spec;
  std::optional<WideDeepColumns> columns;  // what it makes of the census; unset: it takes the images of MNIST
  TrainDefaults defaults;
  std::string variant;  // the one asked for or the model's default; empty if it has none
};

/// Sums over the samples of one batch, so that results of parts add up to that of the whole.
struct BatchResult {
  double loss_sum = 0;
  int64_t correct = 0;
  int64_t samples = 0;
  double mean_loss() const { return loss_sum / static_cast<double>(samples); }
  double accuracy() const { return static_cast<double>(correct) / static_cast<double>(samples); }
  BatchResult& operator+=(const BatchResult& other) {
    loss_sum += other.loss_sum;
    correct += other.correct;
    samples += other.samples;
    return *this;
  }
};

/// Holds scratch memory for the largest batch, planned once: a step allocates nothing of its own. One thread
/// at a time.
class Model {
 public:
  virtual ~Model() = default;

  virtual const ModelPlan& plan() const = 0;
  const ParameterLayout& layout() const { return plan().layout; }

  /// Told, on the same thread, that the gradient is final from float `begin` to the end of the layout. Each
  /// `begin` is below the one before.
  using GradientReady = absl::FunctionRef<void(int64_t begin)>;

  /// gradient [layout().size() + batch.rows->size()]: of the loss summed over the samples, padding zero, and
  /// behind the layout that of the batch's rows; overwritten. parameters [layout().size()]. A batch larger
  /// than planned is a bug; an empty one gives zeros. `ready` hears of what is final while the rest is
  /// still computed, as far as this kind of model knows before the end.
  virtual BatchResult ForwardBackward(std::span<const float> parameters, const Batch& batch,
                                      std::span<float> gradient, GradientReady ready) = 0;
  BatchResult ForwardBackward(std::span<const float> parameters, const Batch& batch,
                              std::span<float> gradient) {
    return ForwardBackward(parameters, batch, gradient, [](int64_t) {});
  }

  /// The same result without the gradient.
  virtual BatchResult Evaluate(std::span<const float> parameters, const Batch& batch) = 0;

  /// [samples, plan().outputs] of the batch that passed last, until the next one. A model on a device may
  /// have none after ForwardBackward.
  virtual std::span<const float> logits() const = 0;

  /// OK, or what went wrong first with the device that computes: no result since then means anything.
  virtual absl::Status status() const { return absl::OkStatus(); }
};

/// InvalidArgument: an unknown model (with the nearest name and the list), a variant or hidden sizes that it
/// does not have, a hidden size that is not from 1 to 65,536, more than 1,000 of them.
absl::StatusOr<ModelRecipe> FindModel(const ModelConfig& config);

/// "mnist_mlp with hidden layers 512,512", for messages.
std::string Describe(const ModelConfig& config);

/// "mnist_softmax", "mnist_mlp", ... for help texts.
std::vector<std::string> ModelNames();

/// Of one of them, its default first; empty if it has none.
std::vector<std::string> ModelVariants(const std::string& model);

}  // namespace muster
