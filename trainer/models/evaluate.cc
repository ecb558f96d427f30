#include "trainer/models/evaluate.h"

#include <algorithm>

namespace muster {

BatchResult EvaluateDataset(Model& model, std::span<const float> parameters, const Dataset& dataset,
                            BatchBuffer& buffer) {
  MUSTER_CHECK(buffer.largest_batch() > 0);
  BatchResult result;
  for (int64_t begin = 0; begin < dataset.size(); begin += buffer.largest_batch()) {
    const int64_t end = std::min(begin + buffer.largest_batch(), dataset.size());
    result += model.Evaluate(parameters, buffer.FillInOrder(dataset, {begin, end}));
  }
  return result;
}

}  // namespace muster
