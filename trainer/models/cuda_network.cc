#include "trainer/models/cuda_network.h"

#include <algorithm>
#include <variant>

#include "base/random.h"
#include "kernels/cuda/dense.h"

namespace muster {
namespace {

// Parameters below which a part is not worth a kernel of its own.
constexpr int64_t kLeastPart = int64_t{1} << 16;

// Not std::visit: a kind of layer that has no code here is an answer, not a program that does not build.
absl::StatusOr<std::unique_ptr<CudaLayer>> MakeLayer(const LayerPlan& plan, const MaxPoolSpec* pool,
                                                     const CudaLayerContext& context, uint64_t seed) {
  if (const auto* const dense = std::get_if<DenseSpec>(&plan.spec)) {
    return MakeCudaDense(*dense, plan, context);
  }
  if (const auto* const convolution = std::get_if<ConvolutionSpec>(&plan.spec)) {
    return MakeCudaConvolution(*convolution, pool, plan, context);
  }
  if (const auto* const max_pool = std::get_if<MaxPoolSpec>(&plan.spec)) {
    return MakeCudaMaxPool(*max_pool, plan, context);
  }
  if (const auto* const dropout = std::get_if<DropoutSpec>(&plan.spec)) {
    return MakeCudaDropout(*dropout, plan, seed);
  }
  return absl::UnimplementedError("the model has a kind of layer that is not there for CUDA yet");
}

// The gradient of the logits is that of wide columns too, so no layer may change it for itself.
bool EndsInActivation(const ModelPlan& plan) {
  if (plan.layers.empty()) return false;
  const auto* const dense = std::get_if<DenseSpec>(&plan.layers.back().spec);
  return dense == nullptr || dense->activation != Activation::kNone;
}

bool HasEmbeddings(const ModelPlan& plan) {
  return std::any_of(plan.columns.begin(), plan.columns.end(), [](const IdColumnPlan& column) {
    return std::holds_alternative<EmbeddingColumnSpec>(column.spec);
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<SideStream>> SideStream::Create() {
  auto side = std::make_unique<SideStream>();
  MUSTER_ASSIGN_OR_RETURN(side->stream_, cuda::MakeStream());
  MUSTER_ASSIGN_OR_RETURN(side->forked_, cuda::MakeEvent(/*timed=*/false));
  MUSTER_ASSIGN_OR_RETURN(side->done_, cuda::MakeEvent(/*timed=*/false));
  return side;
}

absl::StatusOr<cudaStream_t> SideStream::Fork(cudaStream_t main) {
  MUSTER_CUDA_RETURN_IF_ERROR(cudaEventRecord(forked_.get(), main));
  MUSTER_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(stream_.get(), forked_.get(), 0));
  return stream_.get();
}

absl::Status SideStream::Join(cudaStream_t main) {
  MUSTER_CUDA_RETURN_IF_ERROR(cudaEventRecord(done_.get(), stream_.get()));
  MUSTER_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(main, done_.get(), 0));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<CudaNetwork>> CudaNetwork::Create(const ModelPlan& plan,
                                                                 const CudaNetworkOptions& options) {
  MUSTER_CHECK(options.largest_batch >= options.largest_training_batch);
  if (plan.wide_bias && EndsInActivation(plan)) {
    return absl::UnimplementedError(
        "the model has wide columns beside a last layer with an activation, which is not there for CUDA yet");
  }
  std::unique_ptr<CudaNetwork> network(new CudaNetwork());
  network->loss_ = plan.spec.loss;
  network->outputs_ = plan.outputs;
  if (plan.wide_bias) network->wide_bias_ = plan.wide_bias->offset;
  MUSTER_ASSIGN_OR_RETURN(network->products_, cuda::MatrixProducts::Create(options.math));
  MUSTER_ASSIGN_OR_RETURN(network->side_, SideStream::Create());
  MUSTER_RETURN_IF_ERROR(network->AddStages(plan, options));
  MUSTER_RETURN_IF_ERROR(network->AddFlatBuffers(plan.layout.size(), options));
  MUSTER_ASSIGN_OR_RETURN(network->features_,
                          cuda::DeviceArray<float>::Create(options.largest_batch * plan.spec.input.size()));
  MUSTER_ASSIGN_OR_RETURN(network->labels_, cuda::DeviceArray<int32_t>::Create(options.largest_batch));
  MUSTER_RETURN_IF_ERROR(network->AddColumns(plan, options));
  MUSTER_ASSIGN_OR_RETURN(network->loss_scratch_, cuda::ZerosOnDevice<cuda::LossScratch>(1));
  return network;
}

absl::Status CudaNetwork::AddFlatBuffers(int64_t size, const CudaNetworkOptions& options) {
  layout_size_ = size;
  parameters_ = options.parameters;
  gradient_ = options.gradient;
  if (parameters_ == nullptr) {
    MUSTER_ASSIGN_OR_RETURN(own_parameters_, cuda::ZerosOnDevice<float>(size));
    parameters_ = own_parameters_.data();
  }
  if (gradient_ == nullptr) {
    // Layers write their tensors and nothing between them.
    MUSTER_ASSIGN_OR_RETURN(own_gradient_, cuda::ZerosOnDevice<float>(size));
    gradient_ = own_gradient_.data();
  }
  return absl::OkStatus();
}

absl::Status CudaNetwork::AddStages(const ModelPlan& plan, const CudaNetworkOptions& options) {
  const CudaLayerContext context{.math = options.math,
                                 .products = products_.get(),
                                 .side = side_.get(),
                                 .largest_batch = options.largest_batch,
                                 .largest_training_batch = options.largest_training_batch};
  RandomStream seeds(options.seed);  // one for each layer of the plan
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    const LayerPlan& first = plan.layers[i];
    const uint64_t seed = seeds.Next();
    const bool is_convolution = std::holds_alternative<ConvolutionSpec>(first.spec);
    const MaxPoolSpec* const pool = is_convolution && i + 1 < plan.layers.size()
                                        ? std::get_if<MaxPoolSpec>(&plan.layers[i + 1].spec)
                                        : nullptr;
    if (pool != nullptr) {
      seeds.Next();
      ++i;
    }
    const int64_t output_size = plan.layers[i].output.size();
    Stage stage;
    MUSTER_ASSIGN_OR_RETURN(stage.layer, MakeLayer(first, pool, context, seed));
    MUSTER_ASSIGN_OR_RETURN(stage.output,
                            cuda::DeviceArray<float>::Create(options.largest_batch * output_size));
    MUSTER_ASSIGN_OR_RETURN(stage.output_gradient,
                            cuda::DeviceArray<float>::Create(options.largest_training_batch * output_size));
    stage.begin = first.tensors.empty() ? -1 : first.tensors.front().offset;
    stages_.push_back(std::move(stage));
  }
  // Tensors lie in the order of their layers.
  int64_t behind = plan.layout.size();
  for (size_t i = stages_.size(); i-- > 0;) {
    if (stages_[i].begin < 0) stages_[i].begin = behind;
    MUSTER_CHECK(stages_[i].begin <= behind);
    behind = stages_[i].begin;
  }
  return absl::OkStatus();
}

absl::Status CudaNetwork::AddColumns(const ModelPlan& plan, const CudaNetworkOptions& options) {
  if (plan.layers.empty()) {
    MUSTER_ASSIGN_OR_RETURN(logits_, cuda::DeviceArray<float>::Create(options.largest_batch * plan.outputs));
    MUSTER_ASSIGN_OR_RETURN(logits_gradient_,
                            cuda::DeviceArray<float>::Create(options.largest_training_batch * plan.outputs));
  } else if (!plan.columns.empty()) {
    const int64_t size = plan.layers.front().input.size();
    MUSTER_ASSIGN_OR_RETURN(input_, cuda::DeviceArray<float>::Create(options.largest_batch * size));
    if (HasEmbeddings(plan)) {
      MUSTER_ASSIGN_OR_RETURN(input_gradient_,
                              cuda::DeviceArray<float>::Create(options.largest_training_batch * size));
    }
  }
  MUSTER_ASSIGN_OR_RETURN(columns_, CudaColumns::Create(plan, {.largest_batch = options.largest_batch,
                                                               .tables = options.tables,
                                                               .features = features_.data(),
                                                               .input_gradient = input_gradient_.data(),
                                                               .logits_gradient = LogitsGradient()}));
  return absl::OkStatus();
}

const float* CudaNetwork::InputOf(size_t stage) const {
  if (stage > 0) return stages_[stage - 1].output.data();
  return input_.size() > 0 ? input_.data() : features_.data();
}

float* CudaNetwork::LogitsGradient() const {
  return stages_.empty() ? logits_gradient_.data() : stages_.back().output_gradient.data();
}

absl::Status CudaNetwork::Forward(const CudaPass& pass) {
  if (input_.size() > 0) MUSTER_RETURN_IF_ERROR(columns_->FillInput(pass, input_.data()));
  for (size_t i = 0; i < stages_.size(); ++i) {
    MUSTER_RETURN_IF_ERROR(
        stages_[i].layer->Forward(pass, parameters_, InputOf(i), stages_[i].output.data()));
  }
  float* const logits = stages_.empty() ? logits_.data() : stages_.back().output.data();
  return columns_->AddWide(pass, parameters_, stages_.empty() ? nullptr : logits, logits);
}

absl::Status CudaNetwork::Loss(const CudaPass& pass, float* gradient, bool add, cuda::LossSums* result) {
  switch (loss_) {
    case LossKind::kSoftmaxCrossEntropy:
      MUSTER_CUDA_RETURN_IF_ERROR(cuda::SoftmaxCrossEntropy(pass.samples, outputs_, logits(), labels_.data(),
                                                            gradient, add, loss_scratch_.data(), result,
                                                            pass.stream));
      break;
    case LossKind::kSigmoidCrossEntropy:
      MUSTER_CHECK(outputs_ == 1);
      MUSTER_CUDA_RETURN_IF_ERROR(cuda::SigmoidCrossEntropy(pass.samples, logits(), labels_.data(), gradient,
                                                            add, loss_scratch_.data(), result, pass.stream));
      break;
  }
  return absl::OkStatus();
}

absl::Status CudaNetwork::ForwardBackward(const CudaPass& pass, cuda::LossSums* result,
                                          const PartDone& part_done) {
  MUSTER_RETURN_IF_ERROR(Forward(pass));
  MUSTER_RETURN_IF_ERROR(Loss(pass, LogitsGradient(), /*add=*/false, result));
  if (wide_bias_) {
    MUSTER_ASSIGN_OR_RETURN(const cudaStream_t side, side_->Fork(pass.stream));
    MUSTER_CUDA_RETURN_IF_ERROR(cuda::ReluBackwardAndColumnSums(
        pass.samples, outputs_, /*activated=*/nullptr, LogitsGradient(), gradient_ + *wide_bias_, side));
  }
  int64_t done = layout_size_;  // from there on
  for (size_t i = stages_.size(); i-- > 0;) {
    // The data needs no gradient, so the first layer is asked for none unless there are embeddings below it.
    float* const input_gradient = i == 0 ? input_gradient_.data() : stages_[i - 1].output_gradient.data();
    MUSTER_RETURN_IF_ERROR(stages_[i].layer->Backward(pass, parameters_, InputOf(i), stages_[i].output.data(),
                                                      stages_[i].output_gradient.data(), gradient_,
                                                      input_gradient));
    if (part_done == nullptr || i == 0 || done - stages_[i].begin < kLeastPart) continue;
    MUSTER_ASSIGN_OR_RETURN(const cudaStream_t side, side_->Fork(pass.stream));
    MUSTER_RETURN_IF_ERROR(part_done({stages_[i].begin, done}, side));
    done = stages_[i].begin;
  }
  MUSTER_RETURN_IF_ERROR(side_->Join(pass.stream));
  return part_done == nullptr ? absl::OkStatus() : part_done({0, done}, pass.stream);
}

absl::Status CudaNetwork::Evaluate(const CudaPass& pass, bool add, cuda::LossSums* result) {
  MUSTER_RETURN_IF_ERROR(Forward(pass));
  return Loss(pass, /*gradient=*/nullptr, add, result);
}

}  // namespace muster
