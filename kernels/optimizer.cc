#include "kernels/optimizer.h"

#include <cmath>

#include "base/nearest.h"

namespace muster {
namespace {

class Sgd : public Optimizer {
 public:
  Sgd(const OptimizerConfig& config, int64_t size) : learning_rate_(config.learning_rate), size_(size) {}

  void Apply(std::span<const float> parameters, std::span<const float> gradient_sum, float gradient_scale,
             std::span<float> updated) override {
    MUSTER_CHECK(parameters.size() == size_ && gradient_sum.size() == size_ && updated.size() == size_);
    for (size_t i = 0; i < size_; ++i) {
      updated[i] = parameters[i] - learning_rate_ * (gradient_sum[i] * gradient_scale);
    }
  }

 private:
  const float learning_rate_;
  const size_t size_;
};

class Adam : public Optimizer {
 public:
  Adam(const OptimizerConfig& config, int64_t size)
      : config_(config), first_moment_(size), second_moment_(size) {}

  void Apply(std::span<const float> parameters, std::span<const float> gradient_sum, float gradient_scale,
             std::span<float> updated) override {
    const size_t size = first_moment_.size();
    MUSTER_CHECK(parameters.size() == size && gradient_sum.size() == size && updated.size() == size);
    // Running products, because pow differs between versions of libm.
    beta1_power_ *= double{config_.beta1};
    beta2_power_ *= double{config_.beta2};
    const float rate = static_cast<float>(double{config_.learning_rate} / (1 - beta1_power_));
    const float second_correction = static_cast<float>(1 / (1 - beta2_power_));
    const float one_minus_beta1 = static_cast<float>(1 - double{config_.beta1});
    const float one_minus_beta2 = static_cast<float>(1 - double{config_.beta2});
    const auto [kind, learning_rate, beta1, beta2, epsilon] = config_;
    float* const first_moment = first_moment_.data();
    float* const second_moment = second_moment_.data();
    // Each element is read before it is written and none depends on another, also when updated is parameters.
#pragma GCC ivdep
    for (size_t i = 0; i < size; ++i) {
      const float gradient = gradient_sum[i] * gradient_scale;
      const float m = beta1 * first_moment[i] + one_minus_beta1 * gradient;
      const float v = beta2 * second_moment[i] + one_minus_beta2 * (gradient * gradient);
      first_moment[i] = m;
      second_moment[i] = v;
      updated[i] = parameters[i] - rate * m / (std::sqrt(v * second_correction) + epsilon);
    }
  }

 private:
  const OptimizerConfig config_;
  std::vector<float> first_moment_;
  std::vector<float> second_moment_;
  double beta1_power_ = 1;
  double beta2_power_ = 1;
};

struct OptimizerEntry {
  OptimizerKind kind;
  const char* name;
  std::unique_ptr<Optimizer> (*make)(const OptimizerConfig& config, int64_t size);
};

template <typename T>
std::unique_ptr<Optimizer> Make(const OptimizerConfig& config, int64_t size) {
  return std::make_unique<T>(config, size);
}

constexpr OptimizerEntry kOptimizers[] = {
    {OptimizerKind::kSgd, "sgd", Make<Sgd>},
    {OptimizerKind::kAdam, "adam", Make<Adam>},
};

const OptimizerEntry& EntryFor(OptimizerKind kind) {
  for (const OptimizerEntry& entry : kOptimizers) {
    if (entry.kind == kind) return entry;
  }
  MUSTER_CHECK(false, "an optimizer without a row in the table");
}

}  // namespace

absl::StatusOr<OptimizerKind> ParseOptimizerKind(const std::string& name) {
  std::vector<std::string> names;
  std::string list;
  for (const OptimizerEntry& entry : kOptimizers) {
    if (name == entry.name) return entry.kind;
    names.push_back(entry.name);
    list += (list.empty() ? "" : ", ") + names.back();
  }
  const std::string nearest = NearestWord(name, names);
  return InvalidArgument("no optimizer '%s'%s; there are: %s", name,
                         nearest.empty() ? "" : absl::StrFormat(", did you mean '%s'?", nearest), list);
}

std::string OptimizerName(OptimizerKind kind) { return EntryFor(kind).name; }

std::unique_ptr<Optimizer> MakeOptimizer(const OptimizerConfig& config, int64_t size) {
  return EntryFor(config.kind).make(config, size);
}

}  // namespace muster
