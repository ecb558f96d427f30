#include "trainer/data/synthetic_digits.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <vector>

#include "base/random.h"

namespace muster {
namespace {

struct Point {
  double x, y;  // x to the right, y down
};

// One stroke of the pen, on a grid of 4 wide (0-4) and 6 high (0-6).
using Stroke = std::vector<Point>;

const std::vector<Stroke>& Glyph(int digit) {
  static const std::vector<Stroke> kGlyphs[kMnistClasses] = {
      {{{2, 0}, {3.5, 1}, {4, 3}, {3.5, 5}, {2, 6}, {0.5, 5}, {0, 3}, {0.5, 1}, {2, 0}}},
      {{{1, 1.2}, {2.2, 0}, {2.2, 6}}},
      {{{0.2, 1.5}, {1, 0.2}, {3, 0.2}, {3.8, 1.5}, {3, 3}, {0, 6}, {4, 6}}},
      {{{0.2, 0.8}, {2, 0}, {3.6, 1}, {3, 2.6}, {1.5, 2.8}, {3.2, 3.2}, {4, 4.6}, {2.4, 6}, {0, 5.4}}},
      {{{2.6, 0}, {0, 4}, {4, 4}}, {{3, 2}, {3, 6}}},
      {{{3.8, 0}, {0.6, 0}, {0.4, 2.6}, {2.4, 2.4}, {4, 4}, {2.8, 5.8}, {0.2, 5.6}}},
      {{{3.2, 0}, {1, 1.8}, {0, 4.2}, {1.2, 6}, {3, 5.8}, {3.8, 4.4}, {2.6, 3}, {0.4, 3.8}}},
      {{{0, 0}, {4, 0}, {1.4, 6}}},
      {{{2, 2.8},
        {0.5, 1.6},
        {1.2, 0.2},
        {2.8, 0.2},
        {3.5, 1.6},
        {2, 2.8},
        {0.2, 4.4},
        {1.2, 6},
        {2.8, 6},
        {3.8, 4.4},
        {2, 2.8}}},
      {{{3.6, 2.2}, {1.4, 3.2}, {0.2, 1.8}, {1.4, 0.2}, {3, 0.4}, {3.7, 2}, {3.2, 6}}},
  };
  return kGlyphs[digit];
}

double Between(RandomStream& random, double low, double high) {
  return low + (high - low) * random.NextDouble();
}

// How one sample differs from its glyph: an affine map onto the image and a wobble of each point.
class Hand {
 public:
  explicit Hand(RandomStream& random)
      : random_(random),
        width_(Between(random, 2.6, 4.2)),
        height_(Between(random, 2.7, 3.6)),
        slant_(Between(random, -0.5, 0.5)),
        tilt_(Between(random, -0.25, 0.25)),
        center_x_(Between(random, 11.5, 16.5)),
        center_y_(Between(random, 11.5, 16.5)) {}

  Point Draw(Point p) {
    constexpr double kWobble = 0.5;
    const double x = (p.x - 2 + Between(random_, -kWobble, kWobble)) * width_;
    const double y = (p.y - 3 + Between(random_, -kWobble, kWobble)) * height_;
    return {center_x_ + x - slant_ * y, center_y_ + y + tilt_ * x};
  }

 private:
  RandomStream& random_;
  double width_, height_;  // pixels per unit of the grid
  double slant_, tilt_;
  double center_x_, center_y_;
};

double Distance(Point p, Point a, Point b) {
  const double dx = b.x - a.x, dy = b.y - a.y;
  const double length_squared = dx * dx + dy * dy;
  const double along = length_squared > 0 ? ((p.x - a.x) * dx + (p.y - a.y) * dy) / length_squared : 0;
  const double t = std::clamp(along, 0.0, 1.0);
  const double rx = p.x - (a.x + t * dx), ry = p.y - (a.y + t * dy);
  return std::sqrt(rx * rx + ry * ry);
}

// Ink is full within `radius` of the line and fades over one pixel.
void DrawSegment(Point a, Point b, double radius, std::span<double> ink) {
  const auto first = [&](double low) {
    return static_cast<int64_t>(std::clamp(low - radius - 1, 0.0, kMnistSide - 1.0));
  };
  const auto last = [&](double high) {
    return static_cast<int64_t>(std::clamp(high + radius + 1, 0.0, kMnistSide - 1.0));
  };
  for (int64_t y = first(std::min(a.y, b.y)); y <= last(std::max(a.y, b.y)); ++y) {
    for (int64_t x = first(std::min(a.x, b.x)); x <= last(std::max(a.x, b.x)); ++x) {
      const Point pixel{static_cast<double>(x), static_cast<double>(y)};
      const double value = std::clamp(radius + 1 - Distance(pixel, a, b), 0.0, 1.0);
      double& old = ink[y * kMnistSide + x];
      old = std::max(old, value);
    }
  }
}

void DrawDigit(int digit, RandomStream& random, std::span<uint8_t> image) {
  double ink[kMnistPixels] = {};
  Hand hand(random);
  const double radius = Between(random, 0.3, 1.2);
  for (const Stroke& stroke : Glyph(digit)) {
    Point from = hand.Draw(stroke[0]);
    for (size_t i = 1; i < stroke.size(); ++i) {
      const Point to = hand.Draw(stroke[i]);
      DrawSegment(from, to, radius, ink);
      from = to;
    }
  }
  const double darkness = Between(random, 180, 255);
  for (int64_t i = 0; i < kMnistPixels; ++i) {
    const double noise = Between(random, -30, 30);
    image[i] = static_cast<uint8_t>(std::clamp(ink[i] * darkness + noise, 0.0, 255.0));
  }
}

}  // namespace

Dataset MakeSyntheticDigits(uint64_t seed, int64_t size) {
  Dataset dataset{.feature_count = kMnistPixels,
                  .bytes = std::vector<uint8_t>(size * kMnistPixels),
                  .labels = std::vector<uint8_t>(size)};
  for (int64_t i = 0; i < size; ++i) {
    RandomStream random(seed, static_cast<uint64_t>(i));
    dataset.labels[i] = static_cast<uint8_t>(random.NextBelow(kMnistClasses));
    DrawDigit(dataset.labels[i], random, std::span(dataset.bytes).subspan(i * kMnistPixels, kMnistPixels));
  }
  return dataset;
}

TrainTestData MakeSyntheticMnist(uint64_t seed, int64_t train_size, int64_t test_size) {
  RandomStream seeds(seed);
  const uint64_t train_seed = seeds.Next(), test_seed = seeds.Next();
  return {.train = MakeSyntheticDigits(train_seed, train_size),
          .test = MakeSyntheticDigits(test_seed, test_size)};
}

}  // namespace muster
