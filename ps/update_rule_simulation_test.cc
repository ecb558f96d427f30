// Workers, shards and their coordinator under lost, doubled and late messages, crashes, pauses and deaths of
// workers, from a seed. MUSTER_SIMULATION_SEEDS sets how many seeds are run; MUSTER_SIMULATION_SEED replays
// one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <set>

#include "base/random.h"
#include "cluster/coordinator.h"
#include "ps/shard_clock.h"
#include "ps/update_rule.h"

namespace muster {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(1);
constexpr Duration kLease = std::chrono::milliseconds(400);

struct Scenario {
  const char* name;
  UpdateMode mode = UpdateMode::kSync;
  uint64_t staleness = 0;
  int backups = 0;  // workers beyond those whose gradients make a step
  std::optional<uint64_t> max_staleness = std::nullopt;
};

// What a worker process believes. It has one push in flight, to all shards.
struct SimulatedWorker {
  int rank = 0;
  std::string uuid;
  uint64_t incarnation = 0;
  uint64_t sequence = 0;
  uint64_t local_pushes = 0;
  uint64_t step = 0;  // that it contributes to
  std::vector<ShardClock> clocks;
  std::vector<bool> answered;
  bool in_flight = false;
  bool finished = false;
  bool dead = false;  // for good
  TimePoint paused_until;
};

struct Delivered {
  int rank = 0;
  std::string uuid;
  uint64_t incarnation = 0;
  PushInfo push;
};

// Of one push that has reached a shard.
struct Fate {
  Delivered push;
  int gradient_ends = 0;  // Apply or Discard
  int answers = 0;        // Answer or Refuse
};

class Simulation {
 public:
  Simulation(uint64_t seed, const Scenario& scenario)
      : random_(seed),
        scenario_(scenario),
        worker_count_(1 + scenario.backups + static_cast<int>(random_.NextBelow(4))),
        shard_count_(1 + static_cast<int>(random_.NextBelow(3))),
        target_(5 + random_.NextBelow(20)),
        loses_workers_(random_.NextBelow(2) == 0),
        coordinator_(Options(), now_),
        fates_(shard_count_),
        applied_(shard_count_),
        version_(shard_count_),
        samples_(shard_count_) {
    for (int s = 0; s < shard_count_; ++s) {
      rules_.emplace_back(UpdateRuleOptions{.mode = scenario.mode,
                                            .worker_count = worker_count_,
                                            .staleness = scenario.staleness,
                                            .max_staleness = scenario.max_staleness});
    }
    for (int s = 0; s < shard_count_; ++s) coordinator_.ShardJoin(s, "shard", 0, {}, now_);
    workers_.resize(worker_count_);
    for (int rank = 0; rank < worker_count_; ++rank) StartProcess(rank);
  }

  // Faults for a while, then none: everything must come to its end.
  void Run() {
    for (int i = 0; i < 60'000 && !AllFinished(); ++i) {
      Step(/*faults=*/i < 3000);
      if (testing::Test::HasFatalFailure()) return;
    }
    ASSERT_TRUE(AllFinished()) << "live workers remain, and nothing moves: "
                               << coordinator_.DescribeWait(now_);
    CheckOutcome();
  }

  /// Who made each step; sync and bounded.
  const std::map<uint64_t, std::vector<int>>& contributors() const { return contributors_; }

 private:
  CoordinatorOptions Options() const {
    CoordinatorOptions options{.shard_count = shard_count_,
                               .aggregate = worker_count_ - scenario_.backups,
                               .worker_timeout = std::chrono::seconds(2),
                               .lease = kLease};
    for (int rank = 0; rank < worker_count_; ++rank)
      options.rank_names.push_back(absl::StrFormat("rank %d", rank));
    return options;
  }

  bool IsAsync() const { return scenario_.mode == UpdateMode::kAsync; }

  void StartProcess(int rank) {
    const uint64_t incarnation = workers_[rank].incarnation + 1;
    workers_[rank] = SimulatedWorker{.rank = rank,
                                     .uuid = absl::StrFormat("%d/%d", rank, incarnation),
                                     .incarnation = incarnation,
                                     .clocks = std::vector<ShardClock>(shard_count_),
                                     .answered = std::vector<bool>(shard_count_)};
    SimulatedWorker& worker = workers_[rank];
    coordinator_.Join(rank, now_);
    for (int s = 0; s < shard_count_; ++s) {
      UpdateActions actions;
      const auto answer = rules_[s].Join({rank, worker.uuid, incarnation}, &actions);
      ASSERT_TRUE(answer.ok()) << answer.status();
      worker.clocks[s] = {answer->step, answer->next_step};
      if (s == 0) worker.local_pushes = answer->pushes;
      Perform(s, actions);
    }
  }

  void Step(bool faults) {
    now_ += kTick;
    const uint64_t dice = random_.NextBelow(200);
    SimulatedWorker& worker = workers_[random_.NextBelow(worker_count_)];
    if (faults && dice < 4) {
      if (!worker.dead && !worker.finished) StartProcess(worker.rank);  // the old one was killed
    } else if (faults && loses_workers_ && dice < 6) {
      worker.paused_until = now_ + kTick * static_cast<int>(random_.NextBelow(1000));
    } else if (faults && loses_workers_ && dice == 6 && LivingWorkers() > 1) {
      worker.dead = true;
    } else if (dice < 100) {
      if (now_ >= worker.paused_until) Advance(worker);
    } else {
      for (int i = 0; i < 4 && !network_.empty(); ++i) DeliverOne(faults);
    }
    if (now_ >= coordinator_.next_deadline()) coordinator_.Tick(now_);
    // Both sides of a server's link speak now and then, also when nothing changed.
    if (dice % 20 == 0) {
      const int shard = static_cast<int>(random_.NextBelow(shard_count_));
      SendReport(shard);
      SendDecisions(shard);
    }
  }

  void DeliverOne(bool faults) {
    const auto message = network_.begin() + static_cast<std::ptrdiff_t>(random_.NextBelow(network_.size()));
    const std::function<void()> deliver = *message;
    const uint64_t fate = faults ? random_.NextBelow(10) : 9;
    if (fate != 1) network_.erase(message);  // 1: it will come a second time
    if (fate != 0) deliver();
  }

  int LivingWorkers() const {
    return static_cast<int>(
        std::count_if(workers_.begin(), workers_.end(), [](const SimulatedWorker& w) { return !w.dead; }));
  }

  void Advance(SimulatedWorker& worker) {
    if (worker.dead || worker.finished) return;
    coordinator_.Heard(worker.rank, now_);
    if (worker.in_flight) {
      // It has waited for long, or its stream broke.
      for (int s = 0; s < shard_count_; ++s) {
        if (!worker.answered[s] && random_.NextBelow(8) == 0) Send(worker, s);
      }
      return;
    }
    if (!IsAsync() && !Align(worker)) return;
    if ((IsAsync() ? worker.local_pushes : worker.step) >= target_) {
      worker.finished = true;
      coordinator_.Finish(worker.rank, IsAsync() ? 0 : worker.step, now_);
      return;
    }
    ++worker.sequence;
    worker.in_flight = true;
    for (int s = 0; s < shard_count_; ++s) {
      worker.answered[s] = false;
      Send(worker, s);
    }
  }

  // One round of pulls; false if that was not enough.
  bool Align(SimulatedWorker& worker) {
    worker.step = NextStep(worker.clocks);
    bool aligned = true;
    for (int s = 0; s < shard_count_; ++s) {
      if (!IsTooOldFor(worker.step, worker.clocks[s], scenario_.staleness)) continue;
      aligned = false;
      if (rules_[s].step() + scenario_.staleness < worker.step) continue;  // the answer will come later
      worker.clocks[s].version = rules_[s].step();
      worker.clocks[s].next_step = std::max(worker.clocks[s].next_step, worker.clocks[s].version);
    }
    return aligned;
  }

  void Send(const SimulatedWorker& worker, int shard) {
    const Delivered push{worker.rank,
                         worker.uuid,
                         worker.incarnation,
                         {.sequence = worker.sequence,
                          .step = worker.step,
                          .version = worker.clocks[shard].version,
                          .samples = 1 + static_cast<uint64_t>(worker.rank)}};
    network_.push_back([this, shard, push] { Deliver(shard, push); });
  }

  void Deliver(int shard, Delivered message) {
    message.push.id = ++last_id_;
    fates_[shard][message.push.id].push = message;
    if (shard == 0) coordinator_.Pushed(message.rank, now_);
    Perform(shard, rules_[shard].Push({message.rank, message.uuid, message.incarnation}, message.push));
    if (!IsAsync() && rules_[shard].held_of_step() >= coordinator_.needed()) SendReport(shard);
    CheckInvariants(shard);
  }

  void SendReport(int shard) {
    if (IsAsync()) return;
    ShardReport now = rules_[shard].Report();
    now.epoch = coordinator_.epoch().number;
    network_.push_back([this, shard, report = std::move(now)] {
      const uint64_t version = coordinator_.version();
      coordinator_.Report(shard, report, now_);
      if (coordinator_.version() == version) return;
      for (int s = 0; s < shard_count_; ++s) SendDecisions(s);
    });
  }

  void SendDecisions(int shard) {
    for (const auto& [step, ranks] : coordinator_.decisions()) {
      network_.push_back([this, shard, decision = StepDecision{step, ranks}] {
        Perform(shard, rules_[shard].Decide(decision));
        CheckInvariants(shard);
      });
    }
  }

  void Perform(int shard, UpdateActions actions) {
    for (; !actions.empty(); actions = rules_[shard].Proceed()) PerformOnce(shard, actions);
  }

  void PerformOnce(int shard, const UpdateActions& actions) {
    for (const UpdateAction& action : actions) {
      if (const auto* apply = std::get_if<ApplyAction>(&action)) OnApply(shard, *apply);
      if (const auto* discard = std::get_if<DiscardAction>(&action))
        ++fates_[shard].at(discard->id).gradient_ends;
      if (const auto* refuse = std::get_if<RefuseAction>(&action)) ++fates_[shard].at(refuse->id).answers;
      if (const auto* answer = std::get_if<AnswerAction>(&action)) {
        ++fates_[shard].at(answer->id).answers;
        if (random_.NextBelow(10) != 0) OnAnswer(shard, *answer);  // else lost: the worker will ask again
      }
    }
  }

  void OnApply(int shard, const ApplyAction& apply) {
    ASSERT_EQ(apply.step, ++version_[shard]) << "versions grow by one";
    std::vector<int> ranks;
    uint64_t samples = 0;
    for (const PushId id : apply.pushes) {
      Fate& fate = fates_[shard].at(id);
      ++fate.gradient_ends;
      const Delivered& push = fate.push;
      ranks.push_back(push.rank);
      samples += push.push.samples;
      const uint64_t number = IsAsync() ? push.push.sequence : push.push.step;
      const std::string who = IsAsync() ? push.uuid : absl::StrFormat("%d", push.rank);
      ASSERT_TRUE(applied_[shard].insert({who, number}).second) << "applied twice";
      if (IsAsync()) {
        ASSERT_EQ(push.uuid, workers_[push.rank].uuid) << "a fenced process was applied";
        const uint64_t staleness = apply.step - 1 - push.push.version;
        ASSERT_LE(staleness, scenario_.max_staleness.value_or(UINT64_MAX));
      } else {
        ASSERT_EQ(push.push.step + 1, apply.step) << "a gradient of another step";
        ASSERT_LE(push.push.step - push.push.version, scenario_.staleness) << "the gap is too wide";
      }
    }
    ASSERT_EQ(samples, apply.samples);
    samples_[shard] += samples;
    ASSERT_TRUE(std::is_sorted(ranks.begin(), ranks.end()));
    if (IsAsync()) return;
    ASSERT_LE(static_cast<int>(ranks.size()), worker_count_ - scenario_.backups);
    const auto [other, added] = contributors_.emplace(apply.step, ranks);
    ASSERT_EQ(other->second, ranks) << "shards disagree about who made step " << apply.step;
  }

  void OnAnswer(int shard, const AnswerAction& answer) {
    const Delivered& push = fates_[shard].at(answer.id).push;
    SimulatedWorker& worker = workers_[push.rank];
    if (worker.uuid != push.uuid || !worker.in_flight || worker.sequence != push.push.sequence ||
        worker.answered[shard]) {
      return;
    }
    worker.answered[shard] = true;
    worker.clocks[shard] = {answer.step, std::max(push.push.step + 1, answer.step)};
    if (std::count(worker.answered.begin(), worker.answered.end(), false) > 0) return;
    worker.in_flight = false;
    ++worker.local_pushes;
  }

  void CheckInvariants(int shard) {
    const PushCounts& c = rules_[shard].counts();
    ASSERT_EQ(c.received, c.applied + c.stale + c.duplicate + c.rejected + rules_[shard].held());
    ASSERT_EQ(rules_[shard].step(), version_[shard]);
    PushCounts sum;
    for (const PushTally& tally : rules_[shard].tallies()) {
      sum += tally.counts;
      ASSERT_EQ(tally.staleness.count(), tally.counts.applied);
      for (size_t i = 1; !IsAsync() && i <= tally.staleness.bounds().size(); ++i) {
        if (tally.staleness.bounds()[i - 1] < static_cast<double>(scenario_.staleness)) continue;
        ASSERT_EQ(tally.staleness.counts()[i], 0u) << "the gap is no more than the bound";
      }
    }
    ASSERT_EQ(sum, c);
  }

  bool AllFinished() const {
    return std::all_of(workers_.begin(), workers_.end(),
                       [](const SimulatedWorker& w) { return w.finished || w.dead; });
  }

  void CheckOutcome() {
    for (int s = 0; s < shard_count_; ++s) {
      const uint64_t held = rules_[s].held();
      uint64_t open_gradients = 0, applied_samples = 0;
      for (const auto& [id, fate] : fates_[s]) {
        ASSERT_LE(fate.gradient_ends, 1);
        ASSERT_LE(fate.answers, 1);
        open_gradients += 1 - static_cast<uint64_t>(fate.gradient_ends);
      }
      ASSERT_EQ(open_gradients, held) << "a gradient is neither held nor applied nor given up";
      for (const auto& [who, number] : applied_[s]) applied_samples += 1 + std::stoull(who);
      ASSERT_EQ(samples_[s], applied_samples) << "what was applied is what was sent, once";
    }
    if (IsAsync()) return;
    for (int s = 0; s < shard_count_; ++s) {
      // Whoever finished last has seen a step of every shard that is no more than `staleness` behind.
      ASSERT_GE(version_[s] + scenario_.staleness, target_);
      ASSERT_LE(version_[s], target_);
    }
    if (loses_workers_ || scenario_.backups > 0) return;
    // Each step was made once by everybody: the result of an undisturbed run.
    for (const auto& [step, ranks] : contributors_)
      ASSERT_EQ(ranks.size(), static_cast<size_t>(worker_count_));
  }

  RandomStream random_;
  const Scenario scenario_;
  const int worker_count_;
  const int shard_count_;
  const uint64_t target_;
  const bool loses_workers_;
  TimePoint now_{};
  Coordinator coordinator_;
  std::vector<UpdateRule> rules_;
  std::vector<SimulatedWorker> workers_;
  std::deque<std::function<void()>> network_;
  PushId last_id_ = 0;
  std::vector<std::map<PushId, Fate>> fates_;  // by shard, like the following
  std::vector<std::set<std::pair<std::string, uint64_t>>> applied_;
  std::vector<uint64_t> version_;
  std::vector<uint64_t> samples_;
  std::map<uint64_t, std::vector<int>> contributors_;  // sync: of each step
};

class UpdateRuleSimulation : public testing::TestWithParam<Scenario> {};

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

INSTANTIATE_TEST_SUITE_P(
    Modes, UpdateRuleSimulation,
    testing::Values(Scenario{.name = "Async", .mode = UpdateMode::kAsync},
                    Scenario{.name = "AsyncDropsWhatIsStale", .mode = UpdateMode::kAsync, .max_staleness = 2},
                    Scenario{.name = "Sync"}, Scenario{.name = "SyncWithOneBackup", .backups = 1},
                    Scenario{.name = "SyncWithTwoBackups", .backups = 2},
                    Scenario{.name = "BoundedByZero", .mode = UpdateMode::kBounded},
                    Scenario{.name = "BoundedByOne", .mode = UpdateMode::kBounded, .staleness = 1},
                    Scenario{.name = "BoundedByFour", .mode = UpdateMode::kBounded, .staleness = 4}),
    [](const auto& info) { return info.param.name; });

TEST(UpdateRuleSimulationTest, BoundedByZeroIsSync) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Simulation sync(seed, {.name = "", .mode = UpdateMode::kSync});
    Simulation bounded(seed, {.name = "", .mode = UpdateMode::kBounded});
    sync.Run();
    bounded.Run();
    if (HasFatalFailure()) return;
    EXPECT_EQ(sync.contributors(), bounded.contributors()) << "seed " << seed;
  }
}

}  // namespace
}  // namespace muster
