// Workers and shards under lost, doubled and delayed messages and crashes of workers, from a seed.
// MUSTER_SIMULATION_SEEDS sets how many seeds are run; MUSTER_SIMULATION_SEED replays one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <map>
#include <set>

#include "base/random.h"
#include "ps/update_rule.h"

namespace muster {
namespace {

constexpr int kShards = 2;

struct Delivered {
  int rank = 0;
  std::string uuid;
  uint64_t incarnation = 0;
  PushInfo push;
};

// What a worker process believes. It has one push in flight, to all shards; in sync mode the same step on
// each.
struct SimulatedWorker {
  int rank = 0;
  std::string uuid;
  uint64_t incarnation = 0;
  uint64_t sequence = 0;
  uint64_t local_pushes = 0;
  uint64_t step[kShards] = {};
  bool answered[kShards] = {};
  bool in_flight = false;
  bool finished = false;
};

class Simulation {
 public:
  Simulation(uint64_t seed, UpdateMode mode)
      : random_(seed),
        mode_(mode),
        worker_count_(1 + static_cast<int>(random_.NextBelow(4))),
        target_(5 + random_.NextBelow(20)) {
    for (int s = 0; s < kShards; ++s) {
      rules_.emplace_back(UpdateRuleOptions{.mode = mode, .worker_count = worker_count_}, now_);
    }
    workers_.resize(worker_count_);
    for (int rank = 0; rank < worker_count_; ++rank) StartProcess(rank);
  }

  // Faults for a while, then none: everything must come to its end.
  void Run() {
    for (int i = 0; i < 3000 && !AllFinished(); ++i) Step(/*faults=*/i < 1500);
    if (testing::Test::HasFatalFailure()) return;
    ASSERT_TRUE(AllFinished()) << "live workers remain, and nothing moves";
    CheckOutcome();
  }

 private:
  void StartProcess(int rank) {
    const uint64_t incarnation = workers_[rank].incarnation + 1;
    workers_[rank] = SimulatedWorker{
        .rank = rank, .uuid = absl::StrFormat("%d/%d", rank, incarnation), .incarnation = incarnation};
    SimulatedWorker& worker = workers_[rank];
    for (int s = 0; s < kShards; ++s) {
      UpdateActions actions;
      const auto answer = rules_[s].Join({rank, worker.uuid, incarnation}, now_, &actions);
      ASSERT_TRUE(answer.ok()) << answer.status();
      worker.step[s] = answer->step;
      if (s == 0) worker.local_pushes = answer->pushes;
      Perform(s, actions);
    }
    if (mode_ == UpdateMode::kSync) {  // as AlignSteps does
      const uint64_t step = std::min(worker.step[0], worker.step[1]);
      ASSERT_LE(std::max(worker.step[0], worker.step[1]), step + 1);
      worker.step[0] = worker.step[1] = step;
    }
  }

  void Step(bool faults) {
    now_ += std::chrono::milliseconds(1);
    const uint64_t dice = random_.NextBelow(100);
    if (faults && dice < 3) {
      StartProcess(static_cast<int>(random_.NextBelow(worker_count_)));  // the old one was killed
    } else if (dice < 50) {
      Advance(workers_[random_.NextBelow(worker_count_)], faults);
    } else if (!network_.empty()) {
      const auto message = network_.begin() + static_cast<std::ptrdiff_t>(random_.NextBelow(network_.size()));
      const auto [shard, delivered] = *message;
      const uint64_t fate = faults ? random_.NextBelow(10) : 9;
      if (fate != 1) network_.erase(message);  // 1: it will come a second time
      if (fate != 0) Deliver(shard, delivered);
    }
  }

  void Advance(SimulatedWorker& worker, bool faults) {
    if (worker.finished) return;
    if (worker.in_flight) {
      // Its stream broke, so it says everything that has no answer again; without faults only what got lost
      // earlier.
      for (int s = 0; s < kShards; ++s) {
        if (!worker.answered[s] && (!faults || random_.NextBelow(4) == 0)) Send(worker, s);
      }
      return;
    }
    const uint64_t done = mode_ == UpdateMode::kSync ? worker.step[0] : worker.local_pushes;
    if (done >= target_) {
      worker.finished = true;
      for (int s = 0; s < kShards; ++s) {
        Perform(s, rules_[s].Finish({worker.rank, worker.uuid, worker.incarnation}, now_));
      }
      return;
    }
    ++worker.sequence;
    worker.in_flight = true;
    for (int s = 0; s < kShards; ++s) {
      worker.answered[s] = false;
      Send(worker, s);
    }
  }

  void Send(const SimulatedWorker& worker, int shard) {
    network_.push_back({shard,
                        {worker.rank,
                         worker.uuid,
                         worker.incarnation,
                         {.id = 0, .sequence = worker.sequence, .step = worker.step[shard], .samples = 1}}});
  }

  void Deliver(int shard, Delivered message) {
    message.push.id = ++last_id_;
    pushes_[message.push.id] = message;
    Perform(shard, rules_[shard].Push({message.rank, message.uuid, message.incarnation}, message.push, now_));
    CheckInvariants(shard);
  }

  void Perform(int shard, const UpdateActions& actions) {
    for (const UpdateAction& action : actions) {
      if (const auto* apply = std::get_if<ApplyAction>(&action)) OnApply(shard, *apply);
      if (const auto* answer = std::get_if<AnswerAction>(&action)) OnAnswer(shard, *answer);
    }
  }

  void OnApply(int shard, const ApplyAction& apply) {
    ASSERT_EQ(apply.step, ++version_[shard]) << "versions grow by one";
    std::vector<int> ranks;
    for (const PushId id : apply.pushes) {
      const Delivered& push = pushes_.at(id);
      ranks.push_back(push.rank);
      ASSERT_EQ(push.uuid, workers_[push.rank].uuid) << "a fenced process was applied";
      ASSERT_TRUE(applied_[shard].insert({push.uuid, push.push.sequence}).second) << "applied twice";
      if (mode_ == UpdateMode::kSync) {
        ASSERT_EQ(push.push.step + 1, apply.step) << "a gradient of another step";
      }
    }
    ASSERT_TRUE(std::is_sorted(ranks.begin(), ranks.end()));
    if (mode_ == UpdateMode::kSync) {
      const auto [other, added] = contributors_.emplace(apply.step, ranks);
      ASSERT_EQ(other->second, ranks) << "shards disagree about who made step " << apply.step;
    }
  }

  void OnAnswer(int shard, const AnswerAction& answer) {
    if (random_.NextBelow(10) == 0) return;  // lost: the worker will ask again
    const Delivered& push = pushes_.at(answer.id);
    SimulatedWorker& worker = workers_[push.rank];
    if (worker.uuid != push.uuid || !worker.in_flight || worker.sequence != push.push.sequence ||
        worker.answered[shard]) {
      return;
    }
    worker.answered[shard] = true;
    next_step_[shard][push.rank] = answer.step;
    if (!worker.answered[0] || !worker.answered[1]) return;
    worker.in_flight = false;
    ++worker.local_pushes;
    for (int s = 0; s < kShards; ++s) worker.step[s] = next_step_[s][push.rank];
  }

  void CheckInvariants(int shard) {
    const PushCounts& c = rules_[shard].counts();
    ASSERT_EQ(c.received, c.applied + c.stale + c.duplicate + c.rejected + rules_[shard].held());
    ASSERT_EQ(rules_[shard].step(), version_[shard]);
  }

  bool AllFinished() const {
    for (const SimulatedWorker& worker : workers_) {
      if (!worker.finished) return false;
    }
    return true;
  }

  void CheckOutcome() {
    if (mode_ != UpdateMode::kSync) return;
    // Each step was made once by everybody: the result of an undisturbed run.
    ASSERT_EQ(version_[0], target_);
    ASSERT_EQ(version_[1], target_);
    for (const auto& [step, ranks] : contributors_)
      ASSERT_EQ(ranks.size(), static_cast<size_t>(worker_count_));
  }

  RandomStream random_;
  const UpdateMode mode_;
  const int worker_count_;
  const uint64_t target_;
  TimePoint now_{};
  std::vector<UpdateRule> rules_;
  std::vector<SimulatedWorker> workers_;
  std::deque<std::pair<int, Delivered>> network_;
  PushId last_id_ = 0;
  std::map<PushId, Delivered> pushes_;
  std::set<std::pair<std::string, uint64_t>> applied_[kShards];
  std::map<uint64_t, std::vector<int>> contributors_;  // sync: of each step
  uint64_t version_[kShards] = {};
  std::map<int, uint64_t> next_step_[kShards];
};

class UpdateRuleSimulation : public testing::TestWithParam<UpdateMode> {};

TEST_P(UpdateRuleSimulation, HoldsItsInvariantsForEverySeed) {
  const char* one = std::getenv("MUSTER_SIMULATION_SEED");
  const char* many = std::getenv("MUSTER_SIMULATION_SEEDS");
  const uint64_t first = one != nullptr ? std::strtoull(one, nullptr, 10) : 1;
  const uint64_t count = one != nullptr ? 1 : many != nullptr ? std::strtoull(many, nullptr, 10) : 100;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE(absl::StrFormat("replay with MUSTER_SIMULATION_SEED=%d", seed));
    Simulation simulation(seed, GetParam());
    simulation.Run();
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Modes, UpdateRuleSimulation, testing::Values(UpdateMode::kAsync, UpdateMode::kSync),
                         [](const auto& info) { return info.param == UpdateMode::kSync ? "Sync" : "Async"; });

}  // namespace
}  // namespace muster
