// How oneDNN is to convolve: layouts, primitives, and the ways between layouts. Inside of
// convolution_direct.cc alone.
//
// oneDNN throws dnnl::error.
#pragma once

#include <omp.h>

#include <cstdint>
#include <dnnl.hpp>
#include <unordered_map>

#include "kernels/convolution.h"

namespace muster::onednn {

/// While this lives, oneDNN plans and runs on the calling thread alone.
class OneThread {
 public:
  OneThread() { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(saved_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int saved_ = omp_get_max_threads();
};

/// By oneDNN's numbers of them, at most 8.
using Arguments = std::unordered_map<int, dnnl::memory>;

/// As primitive::execute, without the list that it allocates.
void Execute(const dnnl::primitive& primitive, const dnnl::stream& stream, const Arguments& arguments);

/// How a group's images lie: 0 is [samples, height, width, channels], n is [samples, blocks, height, width,
/// n], where places without a channel are zero.
struct Blocks {
  int64_t input = 0;
  int64_t convolved = 0;
};

/// One sample from [pixels, channels] to [blocks, pixels, block] and back; block is 8 or 16. Places without a
/// channel are left as they are.
void ToBlocks(int64_t block, int64_t pixels, int64_t channels, const float* image, float* blocks);
void FromBlocks(int64_t block, int64_t pixels, int64_t channels, const float* blocks, float* image);

/// How oneDNN wants the weights of its operations to lie; at first it may choose.
struct WeightDescs {
  dnnl::memory::desc forward, gradient, backward;
};

/// The operations on groups of one size, as oneDNN plans them.
struct Plan {
  dnnl::convolution_forward::primitive_desc forward;
  dnnl::convolution_backward_weights::primitive_desc parameters;
  dnnl::convolution_backward_data::primitive_desc input;
};

/// As Plan, ready to run.
struct Primitives {
  explicit Primitives(const Plan& chosen)
      : plan(chosen), forward(plan.forward), parameters(plan.parameters), input(plan.input) {}
  Plan plan;
  dnnl::convolution_forward forward;
  dnnl::convolution_backward_weights parameters;
  dnnl::convolution_backward_data input;
};

/// Plans for one shape.
class Planner {
 public:
  Planner(const ConvolutionShape& shape, const dnnl::engine& engine);

  /// The layout that oneDNN chooses for the forward pass, if it is made for it in the pass that takes longest
  /// as well; rows of channels otherwise. For groups of this many samples.
  Blocks ChooseBlocks(int64_t samples) const;

  Plan Make(int64_t samples, const Blocks& blocks, const WeightDescs& weights) const;

  dnnl::memory::desc Input(int64_t samples, const Blocks& blocks) const;
  dnnl::memory::desc Convolved(int64_t samples, const Blocks& blocks) const;
  /// As users of the convolution lay the weights out.
  dnnl::memory::desc UserWeights() const;
  WeightDescs AnyWeights() const;

 private:
  dnnl::convolution_forward::primitive_desc Forward(const dnnl::memory::desc& input,
                                                    const dnnl::memory::desc& weights,
                                                    const dnnl::memory::desc& convolved) const;

  const ConvolutionShape shape_;
  const dnnl::engine engine_;
  dnnl::primitive_attr attributes_;
  dnnl::memory::dims before_, after_;  // rows and columns of zeros
};

/// From one layout to another, on the calling thread.
class Reordering {
 public:
  Reordering(const dnnl::memory& from, const dnnl::memory& to);
  void Run(const dnnl::stream& stream) const;

 private:
  dnnl::reorder reorder_;
  Arguments arguments_;
};

}  // namespace muster::onednn
