// The kernels of this folder as fake_cuda has them, but for products and convolutions: loops on a stream's
// thread, which abort where an array that they were given is not one of the GPU's.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "base/status.h"
#include "kernels/cuda/batch.h"
#include "kernels/cuda/cross_entropy.h"
#include "kernels/cuda/dense.h"
#include "kernels/cuda/dropout.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/fake_cuda.h"
#include "kernels/cuda/optimizer.h"
#include "kernels/dropout.h"

namespace muster::cuda {
namespace {

void Lower(int32_t* value, int32_t to) {
  std::atomic_ref shared(*Reachable(value, 1).data());
  int32_t old = shared.load();
  while (to < old && !shared.compare_exchange_weak(old, to)) {
  }
}

// Sample number `slot` of a batch, as FillBatch says.
SampleSource SourceOf(const SampleSource* sources, int64_t sources_count, const int64_t* position,
                      int64_t slot) {
  const int64_t at = Reachable(position, 1)[0] + slot;
  if (sources == nullptr) return {.index = static_cast<int32_t>(at), .shift_x = 0, .shift_y = 0};
  return Reachable(sources, sources_count)[at % sources_count];
}

void FillImage(const ByteSamples& samples, const SampleSource& source, std::span<float> features) {
  const auto bytes = Reachable(samples.bytes, samples.size * samples.feature_count());
  for (int64_t i = 0; i < samples.feature_count(); ++i) {
    const int64_t channel = i % samples.channels, pixel = i / samples.channels;
    const int64_t x = pixel % samples.width - source.shift_x, y = pixel / samples.width - source.shift_y;
    const bool is_inside = x >= 0 && x < samples.width && y >= 0 && y < samples.height;
    const int64_t from = ((source.index * samples.height + y) * samples.width + x) * samples.channels;
    features[i] = is_inside ? static_cast<float>(bytes[from + channel]) * (1.0f / 255) : 0;
  }
}

LossSums SoftmaxLoss(int64_t classes, const float* x, int32_t label, float* gradient) {
  const int64_t largest = std::max_element(x, x + classes,  // NaN is less than any
                                           [](float a, float b) { return a < b || (a != a && b == b); }) -
                          x;
  const float shift = x[largest] == x[largest] ? x[largest] : -INFINITY;
  std::vector<float> exponentials(classes);
  double sum = 0;
  for (int64_t i = 0; i < classes; ++i) sum += exponentials[i] = std::exp(x[i] - shift);
  const bool valid = label >= 0 && label < classes;
  const double loss = valid ? std::log(sum) - (double{x[label]} - double{shift}) : NAN;
  const float inverse = valid ? static_cast<float>(1 / sum) : NAN;
  for (int64_t i = 0; gradient != nullptr && i < classes; ++i) {
    gradient[i] = exponentials[i] * inverse - (i == label ? 1.0f : 0.0f);
  }
  return {loss, largest == label && !std::isnan(loss) ? 1 : 0};
}

LossSums SigmoidLoss(float x, int32_t label, float* gradient) {
  const bool valid = label == 0 || label == 1;
  const double e = std::exp(-std::abs(x));
  const double probability = x > 0 ? 1 / (1 + e) : e / (1 + e);
  if (gradient != nullptr) *gradient = valid ? static_cast<float>(probability - label) : NAN;
  return {valid ? std::log1p(e) + double{x > 0 ? x : 0} - double{x} * label : NAN,
          valid && (label == 1 ? x > 0 : x <= 0) ? 1 : 0};
}

// of_row(row, labels[row], gradient of the row or null)
template <typename OfRow>
void AddUp(int64_t batch, int64_t classes, const int32_t* labels, float* gradient, bool add,
           LossScratch* scratch, LossSums* result, const OfRow& of_row) {
  std::atomic_ref in_use(Reachable(scratch, 1)[0].finished);
  MUSTER_CHECK(in_use.exchange(1) == 0, "the scratch memory of a loss is used by two streams at once");
  if (gradient != nullptr) Reachable(gradient, batch * classes);
  LossSums sums{};
  for (int64_t row = 0; row < batch; ++row) {
    const LossSums of_this =
        of_row(row, Reachable(labels, batch)[row], gradient == nullptr ? nullptr : gradient + row * classes);
    sums.loss_sum += of_this.loss_sum;
    sums.correct += of_this.correct;
  }
  LossSums& all = Reachable(result, 1)[0];
  all = add ? LossSums{all.loss_sum + sums.loss_sum, all.correct + sums.correct} : sums;
  in_use = 0;
}

// After the update of `arrays` by `loop`, which is given the step's factors.
template <typename Loop>
cudaError_t Update(const UpdateArrays& arrays, const StepFactors* factors, const FiniteCheck& check,
                   cudaStream_t stream, const Loop& loop) {
  if (arrays.size == 0) return cudaSuccess;
  return LaunchFake(stream, [=] {
    const auto sums = Reachable(arrays.gradient_sum, arrays.size);
    const auto ends = Reachable(check.tensor_ends, check.tensor_count);
    Reachable(arrays.parameters, arrays.size);
    Reachable(arrays.updated, arrays.size);
    for (int64_t i = 0; i < arrays.size; ++i) {
      if (std::isfinite(sums[i])) continue;
      const auto tensor = std::upper_bound(ends.begin(), ends.end(), check.offset + i) - ends.begin();
      Lower(check.first_bad, std::min(static_cast<int32_t>(tensor), check.tensor_count - 1));
    }
    loop(Reachable(factors, 1)[0]);
  });
}

float ValueAt(const ColumnSource& column, const int32_t* indices, int64_t samples, int64_t sample,
              int64_t i) {
  if (column.kind == ColumnSource::Kind::kSample) {
    return Reachable(column.rows + sample * column.step, column.width)[i];
  }
  const int32_t index = Reachable(indices + column.column * samples, samples)[sample];
  if (index < 0) return NAN;
  if (column.kind == ColumnSource::Kind::kOneHot) return index == i ? 1 : 0;
  return Reachable(column.rows + index * column.step, column.width)[i];
}

// use(index, sums of the row's gradient [width]) for each row that an index names, once.
template <typename Use>
void ForEachRow(const RowGradient& from, const int32_t* indices, int64_t samples, const Use& use) {
  const auto column = Reachable(indices + from.column * samples, samples);
  for (int64_t sample = 0; sample < samples; ++sample) {
    const int32_t index = column[sample];
    if (index < 0 || std::find(column.begin(), column.begin() + sample, index) != column.begin() + sample) {
      continue;
    }
    std::vector<float> sums(from.width);
    for (int64_t other = sample; other < samples; ++other) {
      if (column[other] != index) continue;
      const auto gradient = Reachable(from.matrix + other * from.stride + from.begin, from.width);
      for (int64_t i = 0; i < from.width; ++i) sums[i] += gradient[i];
    }
    use(index, sums);
  }
}

void UpdateRow(const RowUpdate& update, const StepFactors& factors, int64_t place,
               const std::vector<float>& sums) {
  const auto width = static_cast<int64_t>(sums.size());
  float* const values = Reachable(update.values + place, width).data();
  const auto slot = [&](float* slots) { return Reachable(slots + place, width).data(); };
  const UpdateArrays arrays{width, values, sums.data(), values};
  const GradientFactors by{update.scale, update.weight_decay};
  switch (update.kind) {
    case OptimizerKind::kSgd:
      return SgdLoop(arrays, by, factors.rate);
    case OptimizerKind::kMomentum:
      return MomentumLoop(arrays, by, factors.rate, update.momentum, update.nesterov,
                          factors.clear_subnormals, slot(update.first_slot));
    case OptimizerKind::kAdagrad:
      return AdagradLoop(arrays, by, factors.rate, slot(update.first_slot));
    case OptimizerKind::kAdam:
      return AdamLoop(arrays, by, factors.adam, factors.clear_subnormals, slot(update.first_slot),
                      slot(update.second_slot));
    case OptimizerKind::kFtrl:
      return FtrlLoop(arrays, {update.scale, factors.inverse_rate, update.l1, update.twice_l2},
                      slot(update.first_slot), slot(update.second_slot));
  }
}

}  // namespace

// batch.h

cudaError_t FillBatch(const ByteSamples& samples, const SampleSource* sources, int64_t sources_count,
                      const int64_t* position, int64_t batch, float* features, int32_t* labels,
                      cudaStream_t stream) {
  return LaunchFake(stream, [=] {
    const int64_t size = samples.feature_count();
    for (int64_t slot = 0; slot < batch; ++slot) {
      const SampleSource source = SourceOf(sources, sources_count, position, slot);
      const auto target = Reachable(features, batch * size).subspan(slot * size, size);
      const bool exists = source.index >= 0 && source.index < samples.size;
      Reachable(labels, batch)[slot] = exists ? Reachable(samples.labels, samples.size)[source.index] : -1;
      if (exists) {
        FillImage(samples, source, target);
      } else {
        std::fill(target.begin(), target.end(), NAN);
      }
    }
  });
}

cudaError_t FillBatch(const TableSamples& samples, const SampleSource* sources, int64_t sources_count,
                      const int64_t* position, int64_t batch, float* features, int32_t* indices,
                      int32_t* labels, cudaStream_t stream) {
  return LaunchFake(stream, [=] {
    const int64_t numbers = samples.feature_count, ids = samples.id_count;
    const auto all_numbers = Reachable(samples.features, samples.size * numbers);
    const auto all_ids = Reachable(samples.ids, samples.size * ids);
    for (int64_t slot = 0; slot < batch; ++slot) {
      const int64_t index = SourceOf(sources, sources_count, position, slot).index;
      const bool exists = index >= 0 && index < samples.size;
      Reachable(labels, batch)[slot] = exists ? Reachable(samples.labels, samples.size)[index] : -1;
      for (int64_t i = 0; i < numbers; ++i) {
        Reachable(features, batch * numbers)[slot * numbers + i] =
            exists ? all_numbers[index * numbers + i] : NAN;
      }
      for (int64_t i = 0; i < ids; ++i) {
        Reachable(indices, batch * ids)[i * batch + slot] = exists ? all_ids[index * ids + i] : -1;
      }
    }
  });
}

// dense.h

cudaError_t AddBiasRelu(int64_t rows, int64_t columns, const float* bias, float* output,
                        cudaStream_t stream) {
  return LaunchFake(stream, [=] {
    const auto values = Reachable(output, rows * columns);
    for (int64_t i = 0; i < rows * columns; ++i) {
      const float value = values[i] + Reachable(bias, columns)[i % columns];
      values[i] = value < 0 ? 0 : value;
    }
  });
}

cudaError_t ReluBackwardAndColumnSums(int64_t rows, int64_t columns, const float* activated, float* gradient,
                                      float* column_sums, cudaStream_t stream) {
  return LaunchFake(stream, [=] {
    const auto values = Reachable(gradient, rows * columns);
    const auto sums = Reachable(column_sums, columns);
    if (activated != nullptr) Reachable(activated, rows * columns);
    std::fill(sums.begin(), sums.end(), 0.0f);
    for (int64_t i = 0; i < rows * columns; ++i) {
      if (activated != nullptr && activated[i] == 0) values[i] = 0;
      sums[i % columns] += values[i];
    }
  });
}

cudaError_t ReluBackward(int64_t count, const float* activated, float* gradient, cudaStream_t stream) {
  return LaunchFake(stream, [=] {
    const auto outputs = Reachable(activated, count);
    const auto values = Reachable(gradient, count);
    for (int64_t i = 0; i < count; ++i) {
      if (outputs[i] == 0) values[i] = 0;
    }
  });
}

// cross_entropy.h

cudaError_t SoftmaxCrossEntropy(int64_t batch, int64_t classes, const float* logits, const int32_t* labels,
                                float* gradient, bool add, LossScratch* scratch, LossSums* result,
                                cudaStream_t stream) {
  return LaunchFake(stream, [=] {
    const float* const x = Reachable(logits, batch * classes).data();
    AddUp(batch, classes, labels, gradient, add, scratch, result,
          [&](int64_t row, int32_t label, float* row_gradient) {
            return SoftmaxLoss(classes, x + row * classes, label, row_gradient);
          });
  });
}

cudaError_t SigmoidCrossEntropy(int64_t batch, const float* logits, const int32_t* labels, float* gradient,
                                bool add, LossScratch* scratch, LossSums* result, cudaStream_t stream) {
  return LaunchFake(stream, [=] {
    const auto x = Reachable(logits, batch);
    AddUp(batch, /*classes=*/1, labels, gradient, add, scratch, result,
          [&](int64_t row, int32_t label, float* row_gradient) {
            return SigmoidLoss(x[row], label, row_gradient);
          });
  });
}

// optimizer.h

cudaError_t SgdUpdate(UpdateArrays arrays, GradientFactors gradient, const StepFactors* factors,
                      const FiniteCheck& check, cudaStream_t stream) {
  return Update(arrays, factors, check, stream,
                [=](const StepFactors& step) { SgdLoop(arrays, gradient, step.rate); });
}

cudaError_t MomentumUpdate(UpdateArrays arrays, GradientFactors gradient, const StepFactors* factors,
                           float momentum, bool nesterov, float* velocity, const FiniteCheck& check,
                           cudaStream_t stream) {
  return Update(arrays, factors, check, stream, [=](const StepFactors& step) {
    MomentumLoop(arrays, gradient, step.rate, momentum, nesterov, step.clear_subnormals,
                 Reachable(velocity, arrays.size).data());
  });
}

cudaError_t AdagradUpdate(UpdateArrays arrays, GradientFactors gradient, const StepFactors* factors,
                          float* accumulator, const FiniteCheck& check, cudaStream_t stream) {
  return Update(arrays, factors, check, stream, [=](const StepFactors& step) {
    AdagradLoop(arrays, gradient, step.rate, Reachable(accumulator, arrays.size).data());
  });
}

cudaError_t AdamUpdate(UpdateArrays arrays, GradientFactors gradient, const StepFactors* factors,
                       float* first_moment, float* second_moment, const FiniteCheck& check,
                       cudaStream_t stream) {
  return Update(arrays, factors, check, stream, [=](const StepFactors& step) {
    AdamLoop(arrays, gradient, step.adam, step.clear_subnormals, Reachable(first_moment, arrays.size).data(),
             Reachable(second_moment, arrays.size).data());
  });
}

cudaError_t FtrlUpdate(UpdateArrays arrays, float scale, const StepFactors* factors, float l1, float twice_l2,
                       float* accumulator, float* linear, const FiniteCheck& check, cudaStream_t stream) {
  return Update(arrays, factors, check, stream, [=](const StepFactors& step) {
    FtrlLoop(arrays, {scale, step.inverse_rate, l1, twice_l2}, Reachable(accumulator, arrays.size).data(),
             Reachable(linear, arrays.size).data());
  });
}

cudaError_t MarkNotFinite(int64_t size, const float* values, int64_t* word, cudaStream_t stream) {
  return LaunchFake(stream, [=] {
    const auto all = Reachable(values, size);
    const bool is_good =
        std::all_of(all.begin(), all.end(), [](float value) { return std::isfinite(value); });
    if (!is_good) std::atomic_ref(*Reachable(word, 1).data()) |= 1;
  });
}

// dropout.h

cudaError_t DropoutApply(const DropoutMask& mask, const int64_t* position, int64_t samples, int64_t units,
                         const float* input, float* output, cudaStream_t stream) {
  return LaunchFake(stream, [=] {
    const auto low = [](uint64_t value) { return static_cast<uint32_t>(value); };
    const auto high = [](uint64_t value) { return static_cast<uint32_t>(value >> 32); };
    const auto from = Reachable(input, samples * units);
    const auto to = Reachable(output, samples * units);
    for (int64_t i = 0; i < samples * units; ++i) {
      const auto at = static_cast<uint64_t>(Reachable(position, 1)[0] + i / units);
      const auto unit = static_cast<uint64_t>(i % units);
      const auto words =
          Philox({low(unit / 4), high(unit / 4), low(at), high(at)}, {low(mask.seed), high(mask.seed)});
      to[i] = from[i] * (words[unit % 4] < mask.threshold ? 0 : mask.kept);
    }
  });
}

// embedding.h

cudaError_t FillInput(const ColumnSource* columns, int count, const int32_t* indices, int64_t samples,
                      int64_t stride, float* input, cudaStream_t stream) {
  return LaunchFake(stream, [=] {
    const auto all = Reachable(input, samples * stride);
    for (const ColumnSource& column : Reachable(columns, count)) {
      MUSTER_CHECK(column.begin >= 0 && column.begin + column.width <= stride);
      for (int64_t sample = 0; sample < samples; ++sample) {
        for (int64_t i = 0; i < column.width; ++i) {
          all[sample * stride + column.begin + i] = ValueAt(column, indices, samples, sample, i);
        }
      }
    }
  });
}

cudaError_t AddWideColumns(const ColumnSource* columns, int count, const int32_t* indices, int64_t samples,
                           int64_t width, const float* beginning, const float* bias, float* sums,
                           cudaStream_t stream) {
  return LaunchFake(stream, [=] {
    for (int64_t at = 0; at < samples * width; ++at) {
      const int64_t sample = at / width, i = at % width;
      float sum = beginning == nullptr ? 0 : Reachable(beginning, samples * width)[at];
      sum += Reachable(bias, width)[i];
      for (const ColumnSource& column : Reachable(columns, count)) {
        sum += ValueAt(column, indices, samples, sample, i);
      }
      Reachable(sums, samples * width)[at] = sum;
    }
  });
}

cudaError_t SumRowGradients(const RowGradient* gradients, int count, const int32_t* indices, int64_t samples,
                            float* packed, cudaStream_t stream) {
  return LaunchFake(stream, [=] {
    for (const RowGradient& from : Reachable(gradients, count)) {
      ForEachRow(from, indices, samples, [&](int32_t index, const std::vector<float>& sums) {
        std::copy(sums.begin(), sums.end(), Reachable(packed + index, from.width).begin());
      });
    }
  });
}

cudaError_t UpdateRows(const RowGradient* gradients, const RowUpdate* updates, int count,
                       const int32_t* indices, int64_t samples, const StepFactors* factors,
                       int32_t* first_bad, cudaStream_t stream) {
  return LaunchFake(stream, [=] {
    for (int table = 0; table < count; ++table) {
      const RowGradient& from = Reachable(gradients, count)[table];
      const RowUpdate& update = Reachable(updates, count)[table];
      ForEachRow(from, indices, samples, [&](int32_t index, const std::vector<float>& sums) {
        for (const float sum : sums) {
          if (!std::isfinite(sum)) Lower(first_bad, update.tensor);
        }
        UpdateRow(update, Reachable(factors + update.factors, 1)[0], int64_t{index} * from.width, sums);
      });
    }
  });
}

}  // namespace muster::cuda
