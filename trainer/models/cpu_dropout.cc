#include <algorithm>

#include "kernels/dropout.h"
#include "trainer/models/cpu_layer.h"

namespace muster {
namespace {

class CpuDropout final : public CpuLayer {
 public:
  CpuDropout(const DropoutSpec& spec, const LayerPlan& plan, const CpuLayerOptions& options)
      : dropout_{.seed = options.seed, .rate = spec.rate},
        units_(plan.input.size()),
        factors_(options.largest_batch * units_) {}

  void Forward(const LayerPass& pass, std::span<const float>, std::span<const float> input,
               std::span<float> output) override {
    if (!pass.training) {
      std::copy(input.begin(), input.end(), output.begin());
      return;
    }
    const std::span<float> factors = std::span(factors_).first(input.size());
    DropoutFactors(dropout_, pass.position, pass.samples, units_, factors);
    DropoutApply(factors, input, output);
  }

  void Backward(const LayerPass&, std::span<const float>, std::span<const float>, std::span<const float>,
                std::span<float> output_gradient, std::span<float>,
                std::span<float> input_gradient) override {
    if (input_gradient.empty()) return;
    DropoutApply(std::span(factors_).first(input_gradient.size()), output_gradient, input_gradient);
  }

 private:
  const Dropout dropout_;
  const int64_t units_;
  std::vector<float> factors_;  // of the last forward pass in training: [largest_batch, units]
};

}  // namespace

std::unique_ptr<CpuLayer> MakeCpuLayer(const DropoutSpec& spec, const LayerPlan& plan,
                                       const CpuLayerOptions& options) {
  return std::make_unique<CpuDropout>(spec, plan, options);
}

}  // namespace muster
