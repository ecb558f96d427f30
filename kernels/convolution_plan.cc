#include "kernels/convolution_plan.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/status.h"

namespace muster::onednn {
namespace {

using dnnl::memory;
using Tag = memory::format_tag;

const memory::dims kStrides = {1, 1};

memory::desc Floats(const memory::dims& dims, Tag tag) { return {dims, memory::data_type::f32, tag}; }

Tag ImageTag(int64_t block) { return block == 8 ? Tag::nChw8c : block == 16 ? Tag::nChw16c : Tag::nhwc; }

memory::dims InputDims(const ConvolutionShape& shape, int64_t samples) {
  return {samples, shape.channels, shape.height, shape.width};
}

memory::dims ConvolvedDims(const ConvolutionShape& shape, int64_t samples) {
  return {samples, shape.outputs, shape.convolved_height(), shape.convolved_width()};
}

memory::dims WeightDims(const ConvolutionShape& shape) {
  return {shape.outputs, shape.channels, shape.kernel, shape.kernel};
}

memory::desc Bias(const ConvolutionShape& shape) { return Floats({shape.outputs}, Tag::x); }

int64_t BlockOf(const memory::desc& desc) {
  const dnnl_blocking_desc_t& blocking = desc.data.format_desc.blocking;
  if (blocking.inner_nblks != 1 || blocking.inner_idxs[0] != 1) return 0;
  return blocking.inner_blks[0] == 8 || blocking.inner_blks[0] == 16 ? blocking.inner_blks[0] : 0;
}

// What oneDNN compiles for this instruction set, as opposed to its general versions.
template <typename PrimitiveDesc>
bool IsCompiled(const PrimitiveDesc& desc) {
  const std::string_view name = desc.impl_info_str();
  return name.starts_with("jit") || name.starts_with("brg");
}

template <int64_t kBlock>
void ToBlocksOf(int64_t pixels, int64_t channels, const float* image, float* blocks) {
  for (int64_t c = 0; c < channels; c += kBlock) {
    const int64_t count = std::min(kBlock, channels - c);
    for (int64_t p = 0; p < pixels; ++p, blocks += kBlock) {
      const float* const from = image + p * channels + c;
      count == kBlock ? std::copy_n(from, kBlock, blocks) : std::copy_n(from, count, blocks);
    }
  }
}

template <int64_t kBlock>
void FromBlocksOf(int64_t pixels, int64_t channels, const float* blocks, float* image) {
  for (int64_t c = 0; c < channels; c += kBlock) {
    const int64_t count = std::min(kBlock, channels - c);
    for (int64_t p = 0; p < pixels; ++p, blocks += kBlock) {
      float* const to = image + p * channels + c;
      count == kBlock ? std::copy_n(blocks, kBlock, to) : std::copy_n(blocks, count, to);
    }
  }
}

}  // namespace

void ToBlocks(int64_t block, int64_t pixels, int64_t channels, const float* image, float* blocks) {
  (block == 8 ? ToBlocksOf<8> : ToBlocksOf<16>)(pixels, channels, image, blocks);
}

void FromBlocks(int64_t block, int64_t pixels, int64_t channels, const float* blocks, float* image) {
  (block == 8 ? FromBlocksOf<8> : FromBlocksOf<16>)(pixels, channels, blocks, image);
}

Planner::Planner(const ConvolutionShape& shape, const dnnl::engine& engine) : shape_(shape), engine_(engine) {
  attributes_.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const int64_t zeros = shape.padding == Padding::kSame ? shape.kernel - 1 : 0;
  before_ = {zeros / 2, zeros / 2};
  after_ = {zeros - zeros / 2, zeros - zeros / 2};
}

memory::desc Planner::Input(int64_t samples, const Blocks& blocks) const {
  // One channel lies the same way in every order; in front of blocks oneDNN's fast versions know it as nchw.
  const bool plain = shape_.channels == 1 && blocks.convolved != 0;
  return Floats(InputDims(shape_, samples), plain ? Tag::nchw : ImageTag(blocks.input));
}

memory::desc Planner::Convolved(int64_t samples, const Blocks& blocks) const {
  return Floats(ConvolvedDims(shape_, samples), ImageTag(blocks.convolved));
}

memory::desc Planner::UserWeights() const { return Floats(WeightDims(shape_), Tag::hwio); }

WeightDescs Planner::AnyWeights() const {
  const memory::desc any = Floats(WeightDims(shape_), Tag::any);
  return {any, any, any};
}

Blocks Planner::ChooseBlocks(int64_t samples) const {
  const auto chosen = Forward(Floats(InputDims(shape_, samples), shape_.channels == 1 ? Tag::nchw : Tag::any),
                              AnyWeights().forward, Floats(ConvolvedDims(shape_, samples), Tag::any));
  const Blocks blocks = {.input = BlockOf(chosen.src_desc()), .convolved = BlockOf(chosen.dst_desc())};
  const Plan plan = Make(samples, blocks, AnyWeights());
  return IsCompiled(plan.forward) && IsCompiled(plan.parameters) ? blocks : Blocks();
}

Plan Planner::Make(int64_t samples, const Blocks& blocks, const WeightDescs& weights) const {
  constexpr auto kAlgorithm = dnnl::algorithm::convolution_direct;
  const memory::desc input = Input(samples, blocks), convolved = Convolved(samples, blocks);
  const auto forward = Forward(input, weights.forward, convolved);
  return {forward,
          {{kAlgorithm, input, weights.gradient, Bias(shape_), convolved, kStrides, before_, after_},
           attributes_,
           engine_,
           forward},
          {{kAlgorithm, input, weights.backward, convolved, kStrides, before_, after_},
           attributes_,
           engine_,
           forward}};
}

dnnl::convolution_forward::primitive_desc Planner::Forward(const memory::desc& input,
                                                           const memory::desc& weights,
                                                           const memory::desc& convolved) const {
  return {{dnnl::prop_kind::forward_training, dnnl::algorithm::convolution_direct, input, weights,
           Bias(shape_), convolved, kStrides, before_, after_},
          attributes_,
          engine_};
}

Reordering::Reordering(const memory& from, const memory& to) {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const dnnl::reorder::primitive_desc desc(from, to, attributes);
  reorder_ = dnnl::reorder(desc);
  arguments_ = {{DNNL_ARG_FROM, from},
                {DNNL_ARG_TO, to},
                {DNNL_ARG_SCRATCHPAD, {desc.scratchpad_desc(), from.get_engine()}}};
}

void Execute(const dnnl::primitive& primitive, const dnnl::stream& stream, const Arguments& arguments) {
  std::array<dnnl_exec_arg_t, 8> list;
  MUSTER_CHECK(arguments.size() <= list.size());
  size_t count = 0;
  for (const auto& [number, memory] : arguments) list[count++] = {number, memory.get()};
  dnnl::error::wrap_c_api(
      dnnl_primitive_execute(primitive.get(), stream.get(), static_cast<int>(count), list.data()),
      "could not execute a primitive");
}

void Reordering::Run(const dnnl::stream& stream) const {
  const OneThread one_thread;
  Execute(reorder_, stream, arguments_);
}

}  // namespace muster::onednn
