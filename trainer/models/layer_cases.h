// Small models with each kind of layer, on odd shapes: for the tests of everything that runs plans.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "trainer/models/model_spec.h"

namespace muster {

inline constexpr int64_t kLayersClasses = 3;

struct LayersCase {
  std::string name;
  int64_t channels = 1;
  std::vector<LayerSpec> layers;  // on an image of 7 x 5; two dense layers and the loss follow
};

inline void PrintTo(const LayersCase& layers_case, std::ostream* out) { *out << layers_case.name; }

inline ModelPlan PlanOf(const LayersCase& layers_case) {
  ModelSpec spec{.input = {.height = 7, .width = 5, .channels = layers_case.channels},
                 .layers = layers_case.layers};
  spec.layers.push_back(DenseSpec{.name = "hidden", .outputs = 6, .activation = Activation::kRelu});
  spec.layers.push_back(DenseSpec{.name = "softmax", .outputs = kLayersClasses});
  return *PlanModel(std::move(spec));
}

inline std::vector<LayersCase> LayersCases() {
  constexpr auto kRelu = Activation::kRelu;
  const ConvolutionSpec same{
      .name = "conv", .outputs = 5, .kernel = 3, .padding = Padding::kSame, .activation = kRelu};
  const ConvolutionSpec valid{.name = "conv_1", .outputs = 17, .kernel = 4};
  const ConvolutionSpec even{.name = "conv_2", .outputs = 3, .kernel = 2, .padding = Padding::kSame};
  const MaxPoolSpec pool{.name = "pool", .window = 2};
  const DropoutSpec dropout{.name = "dropout", .rate = 0.5f};
  return {{.name = "dense", .layers = {}},
          {.name = "same", .layers = {same}},
          {.name = "valid", .channels = 3, .layers = {valid}},
          {.name = "even", .channels = 17, .layers = {even}},
          {.name = "pool", .channels = 5, .layers = {pool}},
          {.name = "pooled", .channels = 3, .layers = {same, pool}},
          {.name = "pooled_linear", .channels = 1, .layers = {valid, pool}},
          {.name = "two",
           .channels = 1,
           .layers = {same, pool, even, MaxPoolSpec{.name = "pool_2", .window = 2}}},
          {.name = "unpooled", .channels = 1, .layers = {same, even, dropout, pool}},
          {.name = "after_dense",
           .layers = {DenseSpec{.name = "first", .outputs = 9, .activation = kRelu},
                      ConvolutionSpec{.name = "conv", .outputs = 4, .kernel = 3, .padding = Padding::kSame}}},
          {.name = "dropout", .channels = 3, .layers = {dropout}},
          {.name = "dropout_behind", .layers = {same, pool, dropout}},
          {.name = "dropouts",
           .channels = 3,
           .layers = {dropout, same, DropoutSpec{.name = "dropout_2", .rate = 0.75f}, pool}}};
}

}  // namespace muster
