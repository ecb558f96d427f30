#include "trainer/models/waiting_model.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

namespace muster {
namespace {

// Of one sample, forward. The backward pass has as many for the weights and as many again for the input.
double Multiplications(const LayerPlan& layer) {
  double weights = 0;
  for (const LayoutTensor& tensor : layer.tensors) {
    if (tensor.spec.shape.size() > 1) weights += static_cast<double>(tensor.size);
  }
  const bool is_convolution = std::holds_alternative<ConvolutionSpec>(layer.spec);
  return is_convolution ? weights * static_cast<double>(layer.output.height * layer.output.width) : weights;
}

class WaitingModel final : public Model {
 public:
  WaitingModel(ModelPlan plan, int64_t largest_batch, Duration step)
      : plan_(std::move(plan)), step_(step), logits_(largest_batch * plan_.outputs) {
    double total = 0;
    for (const LayerPlan& layer : plan_.layers) total += Multiplications(layer);
    double done = 0;
    for (auto layer = plan_.layers.rbegin(); layer != plan_.layers.rend(); ++layer) {
      done += Multiplications(*layer);
      const int64_t begin = layer->tensors.empty() ? 0 : layer->tensors.front().offset;
      if (begin > 0) ready_.push_back({(1 + 2 * done / total) / 3, begin});
    }
  }

  const ModelPlan& plan() const override { return plan_; }

  using Model::ForwardBackward;
  BatchResult ForwardBackward(std::span<const float>, const Batch& batch, std::span<float> gradient,
                              GradientReady ready) override {
    const TimePoint start = Now();
    std::fill(gradient.begin(), gradient.end(), 0.0f);
    for (const auto& [share, begin] : ready_) {
      WaitUntil(start, share);
      ready(begin);
    }
    WaitUntil(start, 1);
    return Evaluate({}, batch);
  }

  BatchResult Evaluate(std::span<const float>, const Batch& batch) override {
    samples_ = batch.size();
    return {.samples = samples_};
  }

  std::span<const float> logits() const override {
    return std::span(logits_).first(samples_ * plan_.outputs);
  }

 private:
  struct ReadyPoint {
    double share = 0;  // of the step
    int64_t begin = 0;
  };

  void WaitUntil(TimePoint start, double share) const {
    std::this_thread::sleep_until(start + std::chrono::duration_cast<Duration>(step_ * share));
  }

  const ModelPlan plan_;
  const Duration step_;
  std::vector<ReadyPoint> ready_;  // in the order of time
  std::vector<float> logits_;      // zeros
  int64_t samples_ = 0;            // of the batch that passed last
};

}  // namespace

std::unique_ptr<Model> MakeWaitingModel(ModelPlan plan, int64_t largest_batch, Duration step) {
  return std::make_unique<WaitingModel>(std::move(plan), largest_batch, step);
}

}  // namespace muster
