#include "kernels/max_pool.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

namespace muster {
namespace {

// Four channels at once, or the one that is left over, in the same words: what is compared gives a mask of
// integers that chooses. The compiler does not find these vectors by itself.
struct Four {
  using Float = float __attribute__((vector_size(16)));
  using Int = int32_t __attribute__((vector_size(16)));
  using Byte = uint8_t __attribute__((vector_size(4)));
  static Float All(float value) { return Float{} + value; }
  static Int All(int32_t value) { return Int{} + value; }
  static Byte ToBytes(Int values) { return __builtin_convertvector(values, Byte); }
  static Int FromBytes(Byte values) { return __builtin_convertvector(values, Int); }
};

struct One {
  using Float = float;
  using Int = int32_t;
  using Byte = uint8_t;
  static Float All(float value) { return value; }
  static Int All(int32_t value) { return value; }
  static Byte ToBytes(Int value) { return static_cast<Byte>(value); }
  static Int FromBytes(Byte value) { return value; }
};

template <typename To, typename From>
To Load(const From* from) {
  To to;
  std::memcpy(&to, from, sizeof to);
  return to;
}

template <typename From, typename To>
void Store(const From& from, To* to) {
  std::memcpy(to, &from, sizeof from);
}

int64_t BlockOf(const MaxPoolShape& shape) {
  return shape.input_block == 0 ? shape.channels : shape.input_block;
}

int64_t BlocksOf(const MaxPoolShape& shape) {
  const int64_t block = BlockOf(shape);
  return (shape.channels + block - 1) / block;
}

void CheckSizes(const MaxPoolShape& shape, int64_t samples, size_t input, size_t output, size_t winners) {
  MUSTER_CHECK(shape.window >= 1 && shape.window <= kLargestPoolWindow && shape.window <= shape.height &&
               shape.window <= shape.width && shape.channels >= 1 && samples >= 0);
  MUSTER_CHECK(static_cast<int64_t>(input) == samples * shape.input_size() &&
               static_cast<int64_t>(output) == samples * shape.output_size() && winners == output);
}

// Calls work(lanes, window, input, output) for the channels of each window, four at a time: where the first
// of them lies in the input and in what is pooled. The usual windows are constants, so that the compiler
// unrolls them.
template <typename Work>
void ForEachWindow(const MaxPoolShape& shape, int64_t samples, const Work& work) {
  const int64_t block = BlockOf(shape), blocks = BlocksOf(shape);
  const auto for_each = [&](auto window) {
    for (int64_t sample = 0; sample < samples; ++sample) {
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t plane = (sample * blocks + b) * shape.height * shape.width * block;
        const int64_t channels = std::min(block, shape.channels - b * block);
        for (int64_t y = 0; y < shape.output_height(); ++y) {
          int64_t input = plane + y * window * shape.width * block;
          int64_t output =
              (sample * shape.output_height() + y) * shape.output_width() * shape.channels + b * block;
          for (int64_t x = 0; x < shape.output_width(); ++x) {
            int64_t c = 0;
            for (; c + 4 <= channels; c += 4) work(Four(), window, input + c, output + c);
            for (; c < channels; ++c) work(One(), window, input + c, output + c);
            input += window * block;
            output += shape.channels;
          }
        }
      }
    }
  };
  switch (shape.window) {
    case 1:
      return for_each(std::integral_constant<int64_t, 1>());
    case 2:
      return for_each(std::integral_constant<int64_t, 2>());
    default:
      return for_each(shape.window);
  }
}

// Rows and columns that fill no window.
void ClearRest(const MaxPoolShape& shape, int64_t samples, std::span<float> gradient) {
  const int64_t block = BlockOf(shape), channels = std::min(block, shape.channels);
  const int64_t pooled_rows = shape.output_height() * shape.window;
  const int64_t pooled_columns = shape.output_width() * shape.window;
  if (pooled_rows == shape.height && pooled_columns == shape.width) return;
  for (int64_t plane = 0; plane < samples * BlocksOf(shape); ++plane) {
    for (int64_t y = 0; y < shape.height; ++y) {
      for (int64_t x = y < pooled_rows ? pooled_columns : 0; x < shape.width; ++x) {
        const int64_t pixel = (plane * shape.height + y) * shape.width + x;
        std::fill_n(gradient.begin() + pixel * block, channels, 0.0f);
      }
    }
  }
}

}  // namespace

int64_t MaxPoolShape::input_size() const { return height * width * BlockOf(*this) * BlocksOf(*this); }

void MaxPoolForward(const MaxPoolShape& shape, int64_t samples, std::span<const float> input,
                    std::span<float> output, std::span<uint8_t> winners) {
  CheckSizes(shape, samples, input.size(), output.size(), winners.size());
  const int64_t pixel = BlockOf(shape), row = shape.width * pixel;
  const bool relu = shape.activation == Activation::kRelu;
  const float lowest = relu ? 0 : -INFINITY;
  const int32_t nobody = relu ? static_cast<int32_t>(shape.window * shape.window) : 0;
  ForEachWindow(shape, samples, [&](auto lanes, auto window, int64_t input_begin, int64_t output_begin) {
    using Lanes = decltype(lanes);
    typename Lanes::Float best = Lanes::All(lowest);
    typename Lanes::Int winner = Lanes::All(nobody);
    for (int64_t y = 0; y < window; ++y) {
      for (int64_t x = 0; x < window; ++x) {
        const auto value = Load<typename Lanes::Float>(input.data() + input_begin + y * row + x * pixel);
        const auto wins = (value > best) | (value != value);  // a NaN does, and nothing is above it
        best = wins ? value : best;
        winner = wins ? Lanes::All(static_cast<int32_t>(y * window + x)) : winner;
      }
    }
    Store(best, output.data() + output_begin);
    Store(Lanes::ToBytes(winner), winners.data() + output_begin);
  });
}

void MaxPoolBackward(const MaxPoolShape& shape, int64_t samples, std::span<const float> output_gradient,
                     std::span<const uint8_t> winners, std::span<float> input_gradient) {
  CheckSizes(shape, samples, input_gradient.size(), output_gradient.size(), winners.size());
  const int64_t pixel = BlockOf(shape), row = shape.width * pixel;
  ClearRest(shape, samples, input_gradient);
  ForEachWindow(shape, samples, [&](auto lanes, auto window, int64_t input_begin, int64_t output_begin) {
    using Lanes = decltype(lanes);
    const auto gradient = Load<typename Lanes::Float>(output_gradient.data() + output_begin);
    const auto winner = Lanes::FromBytes(Load<typename Lanes::Byte>(winners.data() + output_begin));
    for (int64_t y = 0; y < window; ++y) {
      for (int64_t x = 0; x < window; ++x) {
        const auto won = winner == Lanes::All(static_cast<int32_t>(y * window + x));
        Store(won ? gradient : Lanes::All(0.0f), input_gradient.data() + input_begin + y * row + x * pixel);
      }
    }
  });
}

}  // namespace muster
