#include "trainer/replicated_parameters.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/support/free_port.h"
#include "tests/support/replica_elsewhere.h"

namespace muster {
namespace {

constexpr Duration kTimeout = std::chrono::seconds(20);

// The parameter: whether the worker's parameters lie elsewhere.
class ReplicatedParametersTest : public testing::TestWithParam<bool> {
 protected:
  ReplicatedParametersTest()
      : layout_(*ParameterLayout::Create(
            {{.name = "w", .shape = {40}, .initializer = Initializer::kUniform, .scale = 1}})) {
    cluster_.workers = {FreeAddress(), FreeAddress()};
  }

  // Worker 0 as far as its group sees it, so that it can end anywhere.
  std::unique_ptr<ElasticGroup> MakeChief(uint64_t incarnation) {
    ElasticGroupOptions options{.incarnation = incarnation,
                                .min_ranks = 2,
                                .connect_timeout = kTimeout,
                                .operation_timeout = kTimeout};
    for (int i = 0; i < 2; ++i) options.all.members.push_back({{Role::kWorker, i}, cluster_.workers[i]});
    auto listener = PeerListener::Listen(cluster_.workers[0], nullptr);
    EXPECT_TRUE(listener.ok()) << listener.status();
    return std::make_unique<ElasticGroup>(options, *std::move(listener));
  }

  std::unique_ptr<ReplicatedParameters> MakeWorker() {
    auto worker = ReplicatedParameters::Create(layout_, optimizers_, 1,
                                               {.cluster = cluster_,
                                                .task = {Role::kWorker, 1},
                                                .replica = GetParam() ? &elsewhere_ : nullptr,
                                                .min_workers = 2,
                                                .connect_timeout = kTimeout,
                                                .operation_timeout = kTimeout});
    EXPECT_TRUE(worker.ok()) << worker.status();
    return *std::move(worker);
  }

  template <typename Value>
  static absl::Status Copy(ElasticGroup& group, std::vector<Value>& values, int source) {
    return group.Run(Broadcast(std::as_writable_bytes(std::span(values)), source));
  }

  const ParameterLayout layout_;
  const std::vector<OptimizerConfig> optimizers_ = {{.kind = OptimizerKind::kAdam}};
  ReplicaElsewhere elsewhere_{layout_, optimizers_};
  ClusterSpec cluster_;
};

INSTANTIATE_TEST_SUITE_P(Place, ReplicatedParametersTest, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "Elsewhere" : "WithTheHost");
});

TEST_P(ReplicatedParametersTest, ASourceThatEndsInTheMiddleOfItsCopyTakesNothingWithIt) {
  std::vector<float> initial(layout_.size());
  layout_.Initialize(1, {0, layout_.size()}, initial);
  std::vector<float> moved(layout_.size(), 9);
  auto chief = MakeChief(1);
  std::jthread worker([&] {
    const auto mine = MakeWorker();
    std::vector<float> parameters(layout_.size());
    ASSERT_TRUE(mine->Start(parameters).ok());
    // The chief, which has made 5 steps, ends before the last values have come.
    const absl::Status interrupted = mine->Start(parameters).status();
    EXPECT_TRUE(IsGoneBack(interrupted)) << interrupted;
    EXPECT_EQ(mine->step(), 0u);
    EXPECT_EQ(parameters, initial);
    // What the replica has counts, not what was last seen of it.
    ASSERT_TRUE(elsewhere_.Load(moved).ok());
    const auto place = mine->Start(parameters);
    ASSERT_TRUE(place.ok()) << place.status();
    EXPECT_EQ(place->source, 1) << "the new chief has none";
    EXPECT_EQ(parameters, GetParam() ? moved : initial);
  });
  ASSERT_TRUE(chief->Join({}).ok());
  const auto ahead = chief->Join(ParametersVersion{.step = 5, .group = 1});
  ASSERT_TRUE(ahead.ok()) << ahead.status();
  ASSERT_EQ(ahead->source, 0);
  std::vector<uint64_t> step = {5};
  std::vector<float> values(layout_.size(), 5);
  ASSERT_TRUE(Copy(*chief, step, 0).ok());
  ASSERT_TRUE(Copy(*chief, values, 0).ok());  // the parameters
  ASSERT_TRUE(Copy(*chief, values, 0).ok());  // the first of the optimizer's two slots
  chief.reset();

  chief = MakeChief(2);
  const auto behind = chief->Join({});
  ASSERT_TRUE(behind.ok()) << behind.status();
  ASSERT_EQ(behind->source, 1);
  ASSERT_TRUE(Copy(*chief, step, 1).ok());
  EXPECT_EQ(step[0], 0u);
  ASSERT_TRUE(Copy(*chief, values, 1).ok());
  EXPECT_EQ(values, GetParam() ? moved : initial);
  for (int slot = 0; slot < 2; ++slot) {
    ASSERT_TRUE(Copy(*chief, values, 1).ok());
    EXPECT_EQ(values, std::vector<float>(layout_.size())) << slot;
  }
}

TEST_P(ReplicatedParametersTest, ANewcomerGoesOnWithAllThatTheOthersHave) {
  auto chief = MakeChief(1);
  std::jthread worker([&] {
    const auto mine = MakeWorker();
    std::vector<float> parameters(layout_.size());
    const auto place = mine->Start(parameters);
    ASSERT_TRUE(place.ok()) << place.status();
    EXPECT_EQ(mine->step(), 5u);
    EXPECT_EQ(parameters, std::vector<float>(layout_.size(), 3));
    if (!GetParam()) return;
    std::vector<float> values(layout_.size());
    ASSERT_TRUE(elsewhere_.Store(values).ok());
    EXPECT_EQ(values, parameters);
    for (int slot = 0; slot < 2; ++slot) {
      ASSERT_TRUE(elsewhere_.CopySlot(slot, values).ok());
      EXPECT_EQ(values[0], 3 + slot);
    }
    // Adam counts the steps, too.
    LayoutOptimizer optimizer = *LayoutOptimizer::Create(layout_, {0, layout_.size()}, optimizers_);
    for (int slot = 0; slot < 2; ++slot) {
      optimizer.SetSlot(slot, std::vector<float>(layout_.size(), static_cast<float>(3 + slot)));
    }
    optimizer.SkipTo(5);
    const std::vector<float> gradient(layout_.size(), 1);
    optimizer.Apply(parameters, gradient, 1, parameters);
    ASSERT_TRUE(elsewhere_.Update(gradient, 1).ok());
    ASSERT_TRUE(elsewhere_.Store(values).ok());
    EXPECT_EQ(values, parameters);
  });
  ASSERT_TRUE(chief->Join(ParametersVersion{.step = 5, .group = 1}).ok());
  std::vector<uint64_t> step = {5};
  ASSERT_TRUE(Copy(*chief, step, 0).ok());
  for (const float value : {3, 3, 4}) {  // parameters and slots
    std::vector<float> values(layout_.size(), value);
    ASSERT_TRUE(Copy(*chief, values, 0).ok());
  }
}

}  // namespace
}  // namespace muster
