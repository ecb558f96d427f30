#include "kernels/optimizer.h"

#include <algorithm>
#include <cmath>

#include "base/nearest.h"
#include "kernels/optimizer_loops.h"
#include "kernels/step_factors.h"
#include "kernels/threads.h"

namespace muster {
namespace {

// What dense updates and those of rows have in common: an update begins with its factors, and then goes over
// one range or several.
class ElementwiseOptimizer : public Optimizer {
 public:
  ElementwiseOptimizer(const OptimizerConfig& config, int64_t size)
      : config_(config), size_(size), sequence_(config) {}

  void Apply(std::span<const float> parameters, std::span<const float> gradient_sum, UpdateScale scale,
             std::span<float> updated) final {
    const size_t size = size_;
    MUSTER_CHECK(parameters.size() == size && gradient_sum.size() == size && updated.size() == size);
    Begin(scale);
    ForEachPart(size_, 1, [&](int64_t begin, int64_t end) {
      const size_t count = end - begin;
      ApplyPart(begin, parameters.subspan(begin, count), gradient_sum.subspan(begin, count),
                updated.subspan(begin, count));
    });
  }

  void Begin(UpdateScale scale) final {
    step_ = sequence_.Next(scale.rate);
    gradient_scale_ = scale.gradient;
  }

  void ApplyPart(int64_t begin, std::span<const float> parameters, std::span<const float> gradient_sum,
                 std::span<float> updated) final {
    const auto size = static_cast<int64_t>(parameters.size());
    MUSTER_CHECK(gradient_sum.size() == parameters.size() && updated.size() == parameters.size());
    MUSTER_CHECK(begin >= 0 && size <= size_ - begin);
    Update(begin, {size, parameters.data(), gradient_sum.data(), updated.data()}, gradient_scale_);
  }

  void ApplyRows(int64_t width, std::span<const int64_t> rows, std::span<const float> gradient_sums,
                 UpdateScale scale, std::span<float> parameters) final {
    MUSTER_CHECK(width > 0 && size_ % width == 0 && static_cast<int64_t>(parameters.size()) == size_);
    MUSTER_CHECK(gradient_sums.size() == rows.size() * width);
    Begin(scale);
    const float* gradient_sum = gradient_sums.data();
    for (const int64_t row : rows) {
      MUSTER_CHECK(row >= 0 && row < size_ / width, "a row outside the table");
      float* const values = parameters.data() + row * width;
      Update(row * width, {width, values, gradient_sum, values}, gradient_scale_);
      gradient_sum += width;
    }
  }

  void Resize(int64_t size) final {
    size_ = size;
    ResizeSlots(size);
  }

  void SkipTo(uint64_t updates) final { sequence_.SkipTo(updates); }

 protected:
  /// Goes over the arrays, whose slots begin at `offset`. Several threads at a time, each with its own range.
  virtual void Update(int64_t offset, UpdateArrays arrays, float gradient_scale) = 0;

  virtual void ResizeSlots(int64_t size) = 0;

  GradientFactors Factors(float gradient_scale) const { return {gradient_scale, config_.weight_decay}; }
  const StepFactors& step() const { return step_; }

  const OptimizerConfig config_;

 private:
  int64_t size_;
  StepFactorSequence sequence_;
  // Of the update under way.
  StepFactors step_;
  float gradient_scale_ = 1;
};

class Sgd final : public ElementwiseOptimizer {
 public:
  using ElementwiseOptimizer::ElementwiseOptimizer;
  std::vector<std::span<float>> slots() override { return {}; }

 private:
  void ResizeSlots(int64_t) override {}
  void Update(int64_t, UpdateArrays arrays, float gradient_scale) override {
    SgdLoop(arrays, Factors(gradient_scale), step().rate);
  }
};

class Momentum final : public ElementwiseOptimizer {
 public:
  Momentum(const OptimizerConfig& config, int64_t size)
      : ElementwiseOptimizer(config, size), velocity_(size) {}
  std::vector<std::span<float>> slots() override { return {velocity_}; }

 private:
  void ResizeSlots(int64_t size) override { velocity_.resize(size); }
  void Update(int64_t offset, UpdateArrays arrays, float gradient_scale) override {
    MomentumLoop(arrays, Factors(gradient_scale), step().rate, config_.momentum, config_.nesterov,
                 step().clear_subnormals, velocity_.data() + offset);
  }

  std::vector<float> velocity_;
};

class Adagrad final : public ElementwiseOptimizer {
 public:
  Adagrad(const OptimizerConfig& config, int64_t size)
      : ElementwiseOptimizer(config, size), accumulator_(size, config.initial_accumulator) {}
  std::vector<std::span<float>> slots() override { return {accumulator_}; }

 private:
  void ResizeSlots(int64_t size) override { accumulator_.resize(size, config_.initial_accumulator); }
  void Update(int64_t offset, UpdateArrays arrays, float gradient_scale) override {
    AdagradLoop(arrays, Factors(gradient_scale), step().rate, accumulator_.data() + offset);
  }

  std::vector<float> accumulator_;
};

class Adam final : public ElementwiseOptimizer {
 public:
  Adam(const OptimizerConfig& config, int64_t size)
      : ElementwiseOptimizer(config, size), first_moment_(size), second_moment_(size) {}
  std::vector<std::span<float>> slots() override { return {first_moment_, second_moment_}; }

 private:
  void ResizeSlots(int64_t size) override {
    first_moment_.resize(size);
    second_moment_.resize(size);
  }
  void Update(int64_t offset, UpdateArrays arrays, float gradient_scale) override {
    AdamLoop(arrays, Factors(gradient_scale), step().adam, step().clear_subnormals,
             first_moment_.data() + offset, second_moment_.data() + offset);
  }

  std::vector<float> first_moment_;
  std::vector<float> second_moment_;
};

class Ftrl final : public ElementwiseOptimizer {
 public:
  Ftrl(const OptimizerConfig& config, int64_t size)
      : ElementwiseOptimizer(config, size), accumulator_(size, config.initial_accumulator), linear_(size) {}
  std::vector<std::span<float>> slots() override { return {accumulator_, linear_}; }

 private:
  void ResizeSlots(int64_t size) override {
    accumulator_.resize(size, config_.initial_accumulator);
    linear_.resize(size);
  }
  void Update(int64_t offset, UpdateArrays arrays, float gradient_scale) override {
    const FtrlFactors factors{.scale = gradient_scale,
                              .inverse_rate = step().inverse_rate,
                              .l1 = config_.l1,
                              .twice_l2 = 2 * config_.l2};
    FtrlLoop(arrays, factors, accumulator_.data() + offset, linear_.data() + offset);
  }

  std::vector<float> accumulator_;
  std::vector<float> linear_;
};

struct OptimizerEntry {
  OptimizerKind kind;
  const char* name;
  float usual_learning_rate;
  std::span<const std::string_view> fields;
  std::unique_ptr<Optimizer> (*make)(const OptimizerConfig& config, int64_t size);
};

template <typename T>
std::unique_ptr<Optimizer> Make(const OptimizerConfig& config, int64_t size) {
  return std::make_unique<T>(config, size);
}

constexpr std::string_view kSgdFields[] = {"weight_decay"};
constexpr std::string_view kMomentumFields[] = {"weight_decay", "momentum", "nesterov"};
constexpr std::string_view kAdagradFields[] = {"weight_decay", "initial_accumulator"};
constexpr std::string_view kAdamFields[] = {"weight_decay", "beta1", "beta2", "epsilon"};
constexpr std::string_view kFtrlFields[] = {"initial_accumulator", "l1", "l2"};

constexpr OptimizerEntry kOptimizers[] = {
    {OptimizerKind::kSgd, "sgd", 0.01f, kSgdFields, Make<Sgd>},
    {OptimizerKind::kMomentum, "momentum", 0.01f, kMomentumFields, Make<Momentum>},
    {OptimizerKind::kAdagrad, "adagrad", 0.05f, kAdagradFields, Make<Adagrad>},
    {OptimizerKind::kAdam, "adam", 0.001f, kAdamFields, Make<Adam>},
    {OptimizerKind::kFtrl, "ftrl", 0.2f, kFtrlFields, Make<Ftrl>},
};

const OptimizerEntry& EntryFor(OptimizerKind kind) {
  for (const OptimizerEntry& entry : kOptimizers) {
    if (entry.kind == kind) return entry;
  }
  MUSTER_CHECK(false, "an optimizer without a row in the table");
}

bool Reads(OptimizerKind kind, std::string_view field) {
  const auto fields = OptimizerFields(kind);
  return std::find(fields.begin(), fields.end(), field) != fields.end();
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

std::span<const std::string_view> OptimizerFields(OptimizerKind kind) { return EntryFor(kind).fields; }

OptimizerConfig UsualOptimizer(OptimizerKind kind) {
  return {.kind = kind, .learning_rate = EntryFor(kind).usual_learning_rate};
}

absl::Status Validate(const OptimizerConfig& config) {
  struct Number {
    const char* field;
    float value;
    bool ok;  // false for NaN too
    const char* expected;
  };
  const auto at_least_0 = [](const char* field, float value) {
    return Number{field, value, std::isfinite(value) && value >= 0, "a finite number of at least 0"};
  };
  const auto above_0 = [](const char* field, float value) {
    return Number{field, value, std::isfinite(value) && value > 0, "a finite number above 0"};
  };
  const auto below_1 = [](const char* field, float value) {
    return Number{field, value, value >= 0 && value < 1, "a number from 0 to below 1"};
  };
  const std::string name = OptimizerName(config.kind);
  for (const auto& [field, value, ok, expected] :
       {above_0("learning_rate", config.learning_rate), at_least_0("weight_decay", config.weight_decay),
        below_1("momentum", config.momentum), below_1("beta1", config.beta1), below_1("beta2", config.beta2),
        above_0("epsilon", config.epsilon), above_0("initial_accumulator", config.initial_accumulator),
        at_least_0("l1", config.l1), at_least_0("l2", config.l2)}) {
    if (!ok)
      return InvalidArgument("%s of the optimizer %s is %g, expected %s", field, name, value, expected);
  }
  // Of the other fields nothing tells whether they were meant.
  for (const auto& [field, is_set] :
       {std::pair{"weight_decay", config.weight_decay != 0}, std::pair{"nesterov", config.nesterov},
        std::pair{"l1", config.l1 != 0}, std::pair{"l2", config.l2 != 0}}) {
    if (is_set && !Reads(config.kind, field)) {
      return InvalidArgument("%s means nothing with the optimizer %s", field, name);
    }
  }
  MUSTER_RETURN_IF_ERROR(Validate(config.schedule));
  if (config.kind == OptimizerKind::kFtrl &&
      (config.schedule.kind != ScheduleKind::kConstant || config.schedule.warmup_steps > 0)) {
    return InvalidArgument("the optimizer ftrl takes a constant learning rate only, without warm-up");
  }
  return absl::OkStatus();
}

std::unique_ptr<Optimizer> MakeOptimizer(const OptimizerConfig& config, int64_t size) {
  MUSTER_CHECK(Validate(config).ok(), std::string(Validate(config).message()));
  return EntryFor(config.kind).make(config, size);
}

int SlotCount(OptimizerKind kind) {
  return static_cast<int>(MakeOptimizer({.kind = kind}, 0)->slots().size());
}

}  // namespace muster
