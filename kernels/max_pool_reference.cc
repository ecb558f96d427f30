#include "kernels/max_pool_reference.h"

namespace muster {

ReferencePooled ReferenceMaxPoolForward(const MaxPoolShape& shape, int64_t samples,
                                        std::span<const double> input) {
  ReferencePooled pooled;
  for (int64_t sample = 0; sample < samples; ++sample) {
    for (int64_t y = 0; y < shape.output_height(); ++y) {
      for (int64_t x = 0; x < shape.output_width(); ++x) {
        for (int64_t c = 0; c < shape.channels; ++c) {
          int64_t winner = -1;
          for (int64_t in_y = y * shape.window; in_y < (y + 1) * shape.window; ++in_y) {
            for (int64_t in_x = x * shape.window; in_x < (x + 1) * shape.window; ++in_x) {
              const int64_t at = ((sample * shape.height + in_y) * shape.width + in_x) * shape.channels + c;
              if (winner == -1 || input[at] > input[winner]) winner = at;
            }
          }
          pooled.output.push_back(input[winner]);
          pooled.winners.push_back(winner);
        }
      }
    }
  }
  return pooled;
}

std::vector<double> ReferenceMaxPoolBackward(const MaxPoolShape& shape, int64_t samples,
                                             std::span<const double> output_gradient,
                                             std::span<const int64_t> winners) {
  std::vector<double> gradient(samples * shape.height * shape.width * shape.channels);
  for (size_t i = 0; i < winners.size(); ++i) gradient[winners[i]] = output_gradient[i];
  return gradient;
}

}  // namespace muster
