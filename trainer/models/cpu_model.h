// A planned model on the CPU.
#pragma once

#include <cstdint>
#include <memory>

#include "trainer/models/model.h"

namespace muster {

struct CpuModelOptions {
  int64_t largest_batch = 0;
  uint64_t seed = 0;  // of dropout: layer i of the plan takes number i of RandomStream(seed)
};

/// Plans all scratch memory for the largest batch.
std::unique_ptr<Model> MakeCpuModel(ModelPlan plan, const CpuModelOptions& options);

}  // namespace muster
