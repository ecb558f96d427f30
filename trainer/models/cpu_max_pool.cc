#include "kernels/max_pool.h"
#include "trainer/models/cpu_layer.h"

namespace muster {
namespace {

class CpuMaxPool final : public CpuLayer {
 public:
  CpuMaxPool(const MaxPoolSpec& spec, const LayerPlan& plan, int64_t largest_batch)
      : shape_{.height = plan.input.height,
               .width = plan.input.width,
               .channels = plan.input.channels,
               .window = spec.window},
        winners_(largest_batch * shape_.output_size()) {}

  void Forward(const LayerPass& pass, std::span<const float>, std::span<const float> input,
               std::span<float> output) override {
    MaxPoolForward(shape_, pass.samples, input, output, std::span(winners_).first(output.size()));
  }

  void Backward(const LayerPass& pass, std::span<const float>, std::span<const float>, std::span<const float>,
                std::span<float> output_gradient, std::span<float>,
                std::span<float> input_gradient) override {
    if (input_gradient.empty()) return;
    MaxPoolBackward(shape_, pass.samples, output_gradient, std::span(winners_).first(output_gradient.size()),
                    input_gradient);
  }

 private:
  const MaxPoolShape shape_;
  std::vector<uint8_t> winners_;  // of the last forward pass
};

}  // namespace

std::unique_ptr<CpuLayer> MakeCpuLayer(const MaxPoolSpec& spec, const LayerPlan& plan,
                                       const CpuLayerOptions& options) {
  return std::make_unique<CpuMaxPool>(spec, plan, options.largest_batch);
}

}  // namespace muster
