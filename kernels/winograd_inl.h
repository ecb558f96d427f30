// The loops of winograd.cc, which includes this file once for each instruction set, inside a namespace of its
// own and under the target options of that set. So it has no include guard, and includes only what is made
// for that: anything else would be compiled for the wrong machine.
//
// kLanes: floats in a vector. kTileRows: rows of a product whose sums, two vectors wide, stay in registers.
// The loops over rows and points must be unrolled, which -O2 would not do: the sums would live in memory.

#include "kernels/vector_inl.h"

// The first `count` floats, which may be none, and zeros.
inline Vector LoadPart(const float* from, int64_t count) {
  if (count >= kLanes) return Load(from);
  Vector vector = {};
  for (int64_t i = 0; i < count; ++i) vector[i] = from[i];
  return vector;
}

inline void StorePart(Vector vector, float* to, int64_t count) {
  if (count >= kLanes) return Store(vector, to);
  for (int64_t i = 0; i < count; ++i) to[i] = vector[i];
}

constexpr int64_t kPanel = 2 * kLanes;
static_assert(kPanel <= kLargestPanel);

struct Place {
  int64_t image = 0;  // where the tile begins
  int64_t output = 0;
  int64_t rows = 0;  // of outputs that there are
  int64_t columns = 0;
};

inline Place PlaceOf(const WinogradTiles& tiles, int64_t tile) {
  const int64_t x = 2 * (tile % tiles.across), y = 2 * (tile / tiles.across % tiles.down);
  const int64_t sample = tile / (tiles.across * tiles.down);
  return {.image = sample * tiles.image + y * tiles.row + x * tiles.pixel,
          .output = ((sample * tiles.height + y) * tiles.width + x) * tiles.outputs,
          .rows = y + 1 < tiles.height ? 2 : 1,
          .columns = x + 1 < tiles.width ? 2 : 1};
}

// B^T d. All rows but two share the factor x^2 + 3/2 x - 1 of the points 1/2 and -2, those the factor x^2 - 1
// of 1 and -1.
inline void ImageToPoints(const Vector (&d)[kSide], Vector (&points)[kSide]) {
  const Vector e0 = d[2] + 1.5f * d[1] - d[0], e1 = d[3] + 1.5f * d[2] - d[1];
  const Vector e2 = d[4] + 1.5f * d[3] - d[2], e3 = d[5] + 1.5f * d[4] - d[3];
  const Vector f1 = d[3] - d[1], f2 = d[4] - d[2];
  points[0] = e2 - e0;
  points[1] = e2 + e1;
  points[2] = e2 - e1;
  points[3] = f2 + 2 * f1;
  points[4] = f2 - 0.5f * f1;
  points[5] = e3 - e1;
}

// A^T points.
inline void PointsToOutput(const Vector (&points)[kSide], Vector (&y)[2]) {
  y[0] = points[0] + (points[1] + points[2]) + (points[3] + points[4]);
  y[1] = (points[1] - points[2]) + (0.5f * points[3] - 2 * points[4]) + points[5];
}

// A y.
inline void OutputToPoints(const Vector (&y)[2], Vector (&points)[kSide]) {
  points[0] = y[0];
  points[1] = y[0] + y[1];
  points[2] = y[0] - y[1];
  points[3] = y[0] + 0.5f * y[1];
  points[4] = y[0] - 2 * y[1];
  points[5] = y[1];
}

// 15 G g and 15 G^T points, of weights g and points that lie `stride` apart, for each of a panel. In double,
// which costs little, once for all of a batch, and without fractions.
inline void WeightsToColumn(const double* g, int64_t stride, double* points, int64_t point_stride) {
  for (int64_t i = 0; i < kPanel; ++i, ++g, ++points) {
    const double g0 = g[0], g1 = g[stride], g2 = g[2 * stride], g3 = g[3 * stride], g4 = g[4 * stride];
    const double even = g0 + g2 + g4, odd = g1 + g3;
    points[0] = 15 * g0;
    points[point_stride] = 5 * (even + odd);
    points[2 * point_stride] = -5 * (even - odd);
    points[3 * point_stride] = -(16 * g0 + 8 * g1 + 4 * g2 + 2 * g3 + g4);
    points[4 * point_stride] = g0 - 2 * g1 + 4 * g2 - 8 * g3 + 16 * g4;
    points[5 * point_stride] = 15 * g4;
  }
}

inline void ColumnToWeights(const double* points, int64_t point_stride, double* g, int64_t stride) {
  for (int64_t i = 0; i < kPanel; ++i, ++g, ++points) {
    const double p3 = points[3 * point_stride], p4 = points[4 * point_stride];
    const double even = 5 * (points[point_stride] - points[2 * point_stride]);
    const double odd = 5 * (points[point_stride] + points[2 * point_stride]);
    g[0] = 15 * points[0] + even - 16 * p3 + p4;
    g[stride] = odd - 8 * p3 - 2 * p4;
    g[2 * stride] = even - 4 * p3 + 4 * p4;
    g[3 * stride] = odd - 2 * p3 - 8 * p4;
    g[4 * stride] = even - p3 + 16 * p4 + 15 * points[5 * point_stride];
  }
}

constexpr double kScale = 1.0 / (15 * 15);

// points [36, panel], `point` floats from one to the next, = G g G^T of weights [25, panel].
void WeightsToPoints(const double* weights, float* points, int64_t point) {
  double columns[kSide * kKernel * kPanel], all[kPoints * kPanel];
  for (int64_t x = 0; x < kKernel; ++x) {
    WeightsToColumn(weights + x * kPanel, kKernel * kPanel, columns + x * kPanel, kKernel * kPanel);
  }
  for (int64_t y = 0; y < kSide; ++y) {
    WeightsToColumn(columns + y * kKernel * kPanel, kPanel, all + y * kSide * kPanel, kPanel);
  }
  for (int64_t p = 0; p < kPoints; ++p) {
    for (int64_t i = 0; i < kPanel; ++i)
      points[p * point + i] = static_cast<float>(kScale * all[p * kPanel + i]);
  }
}

// weights [25, panel] = G^T points G.
void PointsToWeights(const float* points, int64_t point, double* weights) {
  double all[kPoints * kPanel], columns[kKernel * kSide * kPanel];
  for (int64_t p = 0; p < kPoints; ++p) {
    for (int64_t i = 0; i < kPanel; ++i) all[p * kPanel + i] = points[p * point + i];
  }
  for (int64_t x = 0; x < kSide; ++x) {
    ColumnToWeights(all + x * kPanel, kSide * kPanel, columns + x * kPanel, kSide * kPanel);
  }
  for (int64_t y = 0; y < kKernel; ++y) {
    ColumnToWeights(columns + y * kSide * kPanel, kPanel, weights + y * kKernel * kPanel, kPanel);
  }
  for (int64_t i = 0; i < kKernel * kKernel * kPanel; ++i) weights[i] *= kScale;
}

// points = B^T d B of a tile, for all channels.
inline void TransformImageTile(const WinogradTiles& tiles, const float* image, float* points) {
  for (int64_t c = 0; c < tiles.pixel; c += kLanes) {
    Vector columns[kSide][kSide];  // [x][point]
#pragma GCC unroll 6
    for (int x = 0; x < kSide; ++x) {
      Vector d[kSide];
#pragma GCC unroll 6
      for (int y = 0; y < kSide; ++y) d[y] = Load(image + y * tiles.row + x * tiles.pixel + c);
      ImageToPoints(d, columns[x]);
    }
#pragma GCC unroll 6
    for (int y = 0; y < kSide; ++y) {
      Vector d[kSide], row[kSide];
#pragma GCC unroll 6
      for (int x = 0; x < kSide; ++x) d[x] = columns[x][y];
      ImageToPoints(d, row);
#pragma GCC unroll 6
      for (int x = 0; x < kSide; ++x) Store(row[x], points + (y * kSide + x) * tiles.image_point + c);
    }
  }
}

// output = A^T points A, of a tile and the `count` outputs of a panel.
inline void TransformOutputTile(const WinogradTiles& tiles, const Place& place, const float* points,
                                int64_t count, float* output) {
#pragma GCC unroll 2
  for (int64_t o = 0; o < kPanel; o += kLanes) {
    Vector columns[2][kSide];  // [y][x]
#pragma GCC unroll 6
    for (int x = 0; x < kSide; ++x) {
      Vector column[kSide], y[2];
#pragma GCC unroll 6
      for (int i = 0; i < kSide; ++i) column[i] = Load(points + (i * kSide + x) * tiles.output_point + o);
      PointsToOutput(column, y);
      columns[0][x] = y[0];
      columns[1][x] = y[1];
    }
    for (int64_t y = 0; y < place.rows; ++y) {
      Vector row[2];
      PointsToOutput(columns[y], row);
      float* const pixel = output + y * tiles.width * tiles.outputs + o;
      StorePart(row[0], pixel, count - o);
      if (place.columns == 2) StorePart(row[1], pixel + tiles.outputs, count - o);
    }
  }
}

// points = A dy A^T, of a tile and the `count` outputs of a panel. Outputs that there are not have gradient
// 0.
inline void TransformGradientTile(const WinogradTiles& tiles, const Place& place, const float* gradient,
                                  int64_t count, float* points) {
#pragma GCC unroll 2
  for (int64_t o = 0; o < kPanel; o += kLanes) {
    Vector dy[2][2] = {};  // [x][y]
    for (int64_t y = 0; y < place.rows; ++y) {
      for (int64_t x = 0; x < place.columns; ++x) {
        dy[x][y] = LoadPart(gradient + (y * tiles.width + x) * tiles.outputs + o, count - o);
      }
    }
    Vector left[kSide], right[kSide];
    OutputToPoints(dy[0], left);
    OutputToPoints(dy[1], right);
#pragma GCC unroll 6
    for (int y = 0; y < kSide; ++y) {
      Vector row[kSide];
      OutputToPoints({left[y], right[y]}, row);
#pragma GCC unroll 6
      for (int x = 0; x < kSide; ++x) Store(row[x], points + (y * kSide + x) * tiles.output_point + o);
    }
  }
}

// A matrix whose elements lie `row` and `column` floats apart.
struct Strided {
  const float* values = nullptr;
  int64_t row = 0;
  int64_t column = 0;
};

// c [kRows, kPanel] = a [kRows, depth] * b [depth, kPanel], or added to what is there: after it is a sum of
// its own, so that roundings of many calls do not pile up.
template <bool kAdd, int kRows>
inline void MultiplyTile(int64_t depth, Strided a, const float* b, float* c) {
  Vector sums[kRows][2] = {};
  for (int64_t k = 0; k < depth; ++k, a.values += a.column, b += kPanel) {
    const Vector left = Load(b), right = Load(b + kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const float value = a.values[r * a.row];
      sums[r][0] += left * value;
      sums[r][1] += right * value;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r, c += kPanel) {
    Store(kAdd ? Load(c) + sums[r][0] : sums[r][0], c);
    Store(kAdd ? Load(c + kLanes) + sums[r][1] : sums[r][1], c + kLanes);
  }
}

// The `rows` < kRows + 1 that are left over from whole tiles.
template <bool kAdd, int kRows>
inline void MultiplyLast(int64_t rows, int64_t depth, const Strided& a, const float* b, float* c) {
  if constexpr (kRows > 0) {
    if (rows == kRows) return MultiplyTile<kAdd, kRows>(depth, a, b, c);
    MultiplyLast<kAdd, kRows - 1>(rows, depth, a, b, c);
  }
}

template <bool kAdd>
void Multiply(int64_t rows, int64_t depth, Strided a, const float* b, float* c) {
  for (; rows >= kTileRows; rows -= kTileRows, a.values += kTileRows * a.row, c += kTileRows * kPanel) {
    MultiplyTile<kAdd, kTileRows>(depth, a, b, c);
  }
  MultiplyLast<kAdd, kTileRows - 1>(rows, depth, a, b, c);
}

// Calls work(first, count) for the blocks of tiles, whose points are in image_points then.
template <typename Work>
inline void ForEachBlock(const WinogradTiles& tiles, int64_t samples, const float* images,
                         float* image_points, const Work& work) {
  const int64_t all = samples * tiles.down * tiles.across;
  for (int64_t first = 0; first < all; first += tiles.block) {
    const int64_t count = all - first < tiles.block ? all - first : tiles.block;
    for (int64_t i = 0; i < count; ++i) {
      TransformImageTile(tiles, images + PlaceOf(tiles, first + i).image, image_points + i * tiles.pixel);
    }
    work(first, count);
  }
}

void Convolve(const WinogradTiles& tiles, int64_t samples, const float* images, const float* weight_points,
              float* output, float* image_points, float* output_points) {
  ForEachBlock(tiles, samples, images, image_points, [&](int64_t first, int64_t count) {
    const float* weights = weight_points;
    for (int64_t o = 0; o < tiles.outputs; o += kPanel) {
      for (int p = 0; p < kPoints; ++p, weights += tiles.channels * kPanel) {
        const Strided a = {.values = image_points + p * tiles.image_point, .row = tiles.pixel, .column = 1};
        Multiply<false>(count, tiles.channels, a, weights, output_points + p * tiles.output_point);
      }
      for (int64_t i = 0; i < count; ++i) {
        const Place place = PlaceOf(tiles, first + i);
        TransformOutputTile(tiles, place, output_points + i * kPanel, tiles.outputs - o,
                            output + place.output + o);
      }
    }
  });
}

void AddGradient(const WinogradTiles& tiles, int64_t samples, const float* images, const float* gradient,
                 float* gradient_points, float* image_points, float* output_points) {
  ForEachBlock(tiles, samples, images, image_points, [&](int64_t first, int64_t count) {
    float* sums = gradient_points;
    for (int64_t o = 0; o < tiles.outputs; o += kPanel) {
      for (int64_t i = 0; i < count; ++i) {
        const Place place = PlaceOf(tiles, first + i);
        TransformGradientTile(tiles, place, gradient + place.output + o, tiles.outputs - o,
                              output_points + i * kPanel);
      }
      for (int p = 0; p < kPoints; ++p, sums += tiles.channels * kPanel) {
        const Strided a = {.values = image_points + p * tiles.image_point, .row = 1, .column = tiles.pixel};
        Multiply<true>(tiles.channels, count, a, output_points + p * tiles.output_point, sums);
      }
    }
  });
}

constexpr WinogradLoops kLoops = {.lanes = kLanes,
                                  .tile_rows = kTileRows,
                                  .panel = kPanel,
                                  .weights_to_points = WeightsToPoints,
                                  .points_to_weights = PointsToWeights,
                                  .convolve = Convolve,
                                  .add_gradient = AddGradient};
