// Workers that come, leave, die and stand still, shards and their coordinator, under lost, doubled and late
// messages, from a seed: whoever shares the batches, each sample is part of its step once.
// MUSTER_SIMULATION_SEEDS sets how many seeds are run; MUSTER_SIMULATION_SEED replays one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "base/random.h"
#include "cluster/coordinator.h"
#include "ps/shard_clock.h"
#include "ps/update_rule.h"

namespace muster {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(1);
constexpr Duration kLease = std::chrono::milliseconds(300);
constexpr int kMostRanks = 5;

struct Share {
  int place = 0, count = 0;
};

struct SimulatedShard {
  UpdateRule rule;
  Epoch epoch;
  std::vector<int> participants;       // as the coordinator has said last
  std::map<int, std::string> waiting;  // ranks that have asked to join, and the process
  std::map<PushId, Share> shares;      // of the pushes of this epoch
};

struct SimulatedWorker {
  std::string uuid;  // empty: there is none
  uint64_t incarnation = 0;
  uint64_t epoch = 0;  // that it has joined; 0: it is joining
  Share share;
  uint64_t step = 0;                              // that it contributes to
  std::vector<std::optional<ShardClock>> clocks;  // of the shards that it has joined, or that have answered
  std::vector<uint64_t> joined;                   // by shard: the epoch; 0: not yet
  uint64_t attempt = 0;                           // what belongs to an earlier one is ignored
  bool in_flight = false;
  bool finished = false;
  TimePoint paused_until;
};

class Simulation {
 public:
  explicit Simulation(uint64_t seed)
      : random_(seed),
        shard_count_(1 + static_cast<int>(random_.NextBelow(3))),
        ranks_(1 + static_cast<int>(random_.NextBelow(kMostRanks))),
        target_(10 + random_.NextBelow(30)),
        coordinator_(Options(), now_),
        workers_(kMostRanks) {
    for (int s = 0; s < shard_count_; ++s) {
      shards_.push_back(
          {UpdateRule({.mode = UpdateMode::kSync, .worker_count = kMostRanks}), {}, {}, {}, {}});
      coordinator_.ShardJoin(s, "shard", 0, {}, now_);
    }
    for (int rank = 0; rank < ranks_; ++rank) StartProcess(rank);
  }

  // Changes and faults for a while, then none: everything must come to its end.
  void Run() {
    for (int i = 0; i < 80'000 && !AllFinished(); ++i) {
      Step(/*faults=*/i < 4000);
      if (testing::Test::HasFatalFailure()) return;
    }
    ASSERT_TRUE(AllFinished()) << coordinator_.DescribeWait(now_);
    for (const SimulatedShard& shard : shards_) ASSERT_EQ(shard.rule.step(), target_);
    ASSERT_EQ(made_.size(), target_);
  }

  int changes() const { return static_cast<int>(coordinator_.epoch().number - 1); }

 private:
  CoordinatorOptions Options() const {
    return {.rank_names = Names(),
            .shard_count = shard_count_,
            .aggregate = ranks_,
            .shares = true,
            .worker_timeout = std::chrono::seconds(3),
            .lease = kLease};
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (int rank = 0; rank < ranks_; ++rank) names.push_back(absl::StrFormat("rank %d", rank));
    return names;
  }

  bool AllFinished() const {
    for (int rank = 0; rank < ranks_; ++rank) {
      if (!workers_[rank].uuid.empty() && !workers_[rank].finished) return false;
    }
    return true;
  }

  void StartProcess(int rank) {
    SimulatedWorker& worker = workers_[rank];
    worker = {.uuid = absl::StrFormat("%d/%d", rank, worker.incarnation + 1),
              .incarnation = worker.incarnation + 1,
              .attempt = worker.attempt};
    JoinAgain(rank);
  }

  void JoinAgain(int rank) {
    SimulatedWorker& worker = workers_[rank];
    ++worker.attempt;
    worker.epoch = 0;
    worker.in_flight = false;
    worker.clocks.assign(shard_count_, std::nullopt);
    worker.joined.assign(shard_count_, 0);
    for (int s = 0; s < shard_count_; ++s) SendJoin(rank, s);
  }

  void Post(std::function<void()> message) { network_.push_back(std::move(message)); }

  void SendJoin(int rank, int s) {
    Post([this, rank, s, uuid = workers_[rank].uuid] {
      if (workers_[rank].uuid != uuid) return;  // its connection is gone with it
      if (rank >= coordinator_.rank_count()) return;
      shards_[s].waiting[rank] = uuid;
      if (s == 0 && !TakesPart(0, rank)) coordinator_.Join(rank, now_);
      LetIn(s);
      AfterEvent();
    });
  }

  bool TakesPart(int s, int rank) const {
    return shards_[s].epoch.number > 0 && std::ranges::binary_search(shards_[s].participants, rank);
  }

  void LetIn(int s) {
    SimulatedShard& shard = shards_[s];
    std::erase_if(shard.waiting, [&](const auto& entry) {
      const auto& [rank, uuid] = entry;
      if (workers_[rank].uuid != uuid) return true;
      if (!TakesPart(s, rank)) return false;
      UpdateActions actions;
      const auto answer = shard.rule.Join({rank, uuid, workers_[rank].incarnation}, &actions);
      EXPECT_TRUE(answer.ok()) << answer.status();
      Perform(s, actions);
      if (s == 0) coordinator_.Join(rank, now_);
      const auto place = std::ranges::lower_bound(shard.participants, rank) - shard.participants.begin();
      const Share share{static_cast<int>(place), static_cast<int>(shard.participants.size())};
      const ShardClock clock{answer->step, std::max(answer->step, answer->next_step)};
      Post([this, s, rank = rank, uuid = uuid, attempt = workers_[rank].attempt, share, clock,
            epoch = shard.epoch.number] {
        SimulatedWorker& worker = workers_[rank];
        if (worker.uuid != uuid || worker.attempt != attempt || worker.epoch != 0) return;
        worker.clocks[s] = clock;
        worker.joined[s] = epoch;
        if (s == 0) worker.share = share;
        FinishJoining(rank);
      });
      return true;
    });
  }

  // All shards have to be in the same epoch.
  void FinishJoining(int rank) {
    SimulatedWorker& worker = workers_[rank];
    if (std::ranges::find(worker.joined, uint64_t{0}) != worker.joined.end()) return;
    const auto is_same = [&](uint64_t epoch) { return epoch == worker.joined[0]; };
    if (!std::ranges::all_of(worker.joined, is_same)) return JoinAgain(rank);
    worker.epoch = worker.joined[0];
  }

  void Step(bool faults) {
    now_ += kTick;
    const uint64_t dice = random_.NextBelow(400);
    const int rank = static_cast<int>(random_.NextBelow(ranks_));
    SimulatedWorker& worker = workers_[rank];
    if (faults && dice < 3) {
      if (!worker.finished) StartProcess(rank);  // what was there is killed
    } else if (faults && dice == 3) {
      worker.paused_until = now_ + kTick * static_cast<int>(random_.NextBelow(900));
    } else if (faults && dice == 4 && rank > 0 && !worker.finished) {
      worker.uuid.clear();  // for good, or until it is started again
    } else if (faults && dice == 5) {
      SetRanks(1 + static_cast<int>(random_.NextBelow(kMostRanks)));
    } else if (dice < 200) {
      if (now_ >= worker.paused_until) Advance(rank);
    } else {
      for (int i = 0; i < 4 && !network_.empty(); ++i) DeliverOne(faults);
    }
    if (now_ >= coordinator_.next_deadline()) {
      coordinator_.Tick(now_);
      AfterEvent();
    }
    if (dice % 20 == 0) {
      const int s = static_cast<int>(random_.NextBelow(shard_count_));
      SendReport(s);
      SendWord(s);
    }
  }

  void SetRanks(int ranks) {
    for (int rank = ranks; rank < ranks_; ++rank) {
      if (workers_[rank].finished) return;
      workers_[rank].uuid.clear();
    }
    const int before = std::exchange(ranks_, ranks);
    coordinator_.SetRanks(Names());
    for (int rank = before; rank < ranks; ++rank) {
      if (random_.NextBelow(4) > 0) StartProcess(rank);  // else it does not come
    }
    AfterEvent();
  }

  void DeliverOne(bool faults) {
    const auto message = network_.begin() + static_cast<std::ptrdiff_t>(random_.NextBelow(network_.size()));
    const std::function<void()> deliver = *message;
    const uint64_t fate = faults ? random_.NextBelow(10) : 9;
    if (fate != 1) network_.erase(message);  // 1: it will come a second time
    if (fate != 0) deliver();
  }

  void Advance(int rank) {
    SimulatedWorker& worker = workers_[rank];
    if (worker.uuid.empty() || worker.finished) return;
    coordinator_.Heard(rank, now_);
    if (worker.epoch == 0) {
      // It has waited for long, or a connection broke.
      for (int s = 0; s < shard_count_; ++s) {
        if (worker.joined[s] == 0 && random_.NextBelow(8) == 0) SendJoin(rank, s);
      }
      return;
    }
    if (worker.in_flight) {
      for (int s = 0; s < shard_count_; ++s) {
        if (!worker.clocks[s] && random_.NextBelow(8) == 0) SendPush(rank, s);
      }
      return;
    }
    std::vector<ShardClock> clocks;
    for (const auto& clock : worker.clocks) clocks.push_back(*clock);
    worker.step = NextStep(clocks);
    for (int s = 0; s < shard_count_; ++s) {
      if (!IsTooOldFor(worker.step, clocks[s], 0)) continue;
      if (shards_[s].epoch.number != worker.epoch) return JoinAgain(rank);
      if (shards_[s].rule.step() < worker.step) return;  // the answer will come later
      worker.clocks[s]->version = shards_[s].rule.step();
      worker.clocks[s]->next_step = std::max(clocks[s].next_step, shards_[s].rule.step());
      return;
    }
    if (worker.step >= target_) {
      worker.finished = true;
      coordinator_.Finish(rank, worker.step, now_);
      AfterEvent();
      return;
    }
    worker.in_flight = true;
    versions_[rank] = clocks;
    for (int s = 0; s < shard_count_; ++s) {
      worker.clocks[s].reset();
      SendPush(rank, s);
    }
  }

  void SendPush(int rank, int s) {
    const SimulatedWorker& worker = workers_[rank];
    PushInfo push{.step = worker.step,
                  .version = versions_[rank][s].version,
                  .samples = 1 + static_cast<uint64_t>(rank)};
    Post([this, rank, s, push, identity = WorkerIdentity{rank, worker.uuid, worker.incarnation},
          attempt = worker.attempt, epoch = worker.epoch, share = worker.share]() mutable {
      SimulatedShard& shard = shards_[s];
      if (shard.epoch.number != epoch) return SendJoinAgain(rank, identity.uuid, attempt);
      push.id = ++last_id_;
      senders_[push.id] = {rank, identity.uuid, attempt, push.step};
      shard.shares[push.id] = share;
      if (s == 0 && shard.rule.CheckNewest(identity).ok() && rank < coordinator_.rank_count()) {
        coordinator_.Pushed(rank, now_);
      }
      Perform(s, shard.rule.Push(identity, push));
      if (shard.rule.held_of_step() >= coordinator_.needed()) SendReport(s);
      AfterEvent();
    });
  }

  void SendJoinAgain(int rank, const std::string& uuid, uint64_t attempt) {
    Post([this, rank, uuid, attempt] {
      const SimulatedWorker& worker = workers_[rank];
      if (worker.uuid == uuid && worker.attempt == attempt && worker.epoch != 0) JoinAgain(rank);
    });
  }

  void SendReport(int s) {
    ShardReport report = shards_[s].rule.Report();
    report.epoch = shards_[s].epoch.number;
    Post([this, s, report] {
      coordinator_.Report(s, report, now_);
      AfterEvent();
    });
  }

  // Whatever has changed goes to all shards.
  void AfterEvent() {
    if (coordinator_.version() == told_version_) return;
    told_version_ = coordinator_.version();
    for (int s = 0; s < shard_count_; ++s) SendWord(s);
  }

  void SendWord(int s) {
    Post([this, s, epoch = coordinator_.epoch(), participants = coordinator_.participants(),
          decisions = coordinator_.decisions()] {
      SimulatedShard& shard = shards_[s];
      if (epoch.number < shard.epoch.number) return;  // of an earlier connection
      if (epoch.number == shard.epoch.number && participants.size() < shard.participants.size()) return;
      shard.participants = participants;
      if (epoch.number > shard.epoch.number) BeginEpoch(s, epoch);
      LetIn(s);
      for (const auto& [step, ranks] : decisions) Perform(s, shard.rule.Decide({step, ranks}));
      SendReport(s);
    });
  }

  void BeginEpoch(int s, const Epoch& epoch) {
    SimulatedShard& shard = shards_[s];
    if (epoch.goes_on) {
      ASSERT_EQ(shard.epoch.number + 1, epoch.number) << "an epoch was passed over";
      ASSERT_EQ(shard.rule.step(), epoch.step) << "the epoch begins where this shard is not";
    }
    for (const auto& [worker, push] : shard.rule.held_pushes()) TellToJoinAgain(push.id);
    shard.rule = UpdateRule({.mode = UpdateMode::kSync, .worker_count = kMostRanks}, shard.rule.state());
    shard.shares.clear();
    shard.epoch = epoch;
  }

  void TellToJoinAgain(PushId id) {
    const Sender& sender = senders_.at(id);
    SendJoinAgain(sender.rank, sender.uuid, sender.attempt);
  }

  void Perform(int s, UpdateActions actions) {
    for (; !actions.empty(); actions = shards_[s].rule.Proceed()) {
      for (const UpdateAction& action : actions) {
        if (const auto* apply = std::get_if<ApplyAction>(&action)) OnApply(s, *apply);
        if (const auto* answer = std::get_if<AnswerAction>(&action)) OnAnswer(s, *answer);
      }
    }
  }

  void OnApply(int s, const ApplyAction& apply) {
    std::vector<int> ranks;
    std::set<int> places;
    for (const PushId id : apply.pushes) {
      ranks.push_back(senders_.at(id).rank);
      const Share& share = shards_[s].shares.at(id);
      ASSERT_EQ(share.count, static_cast<int>(apply.pushes.size())) << "a batch is not whole";
      ASSERT_TRUE(places.insert(share.place).second) << "samples counted twice";
      ASSERT_LT(share.place, share.count);
    }
    const auto [other, added] = made_.emplace(apply.step, ranks);
    ASSERT_EQ(other->second, ranks) << "shards disagree about who made step " << apply.step;
  }

  void OnAnswer(int s, const AnswerAction& answer) {
    const Sender sender = senders_.at(answer.id);
    Post([this, s, sender, answer] {
      SimulatedWorker& worker = workers_[sender.rank];
      const bool is_awaited = worker.uuid == sender.uuid && worker.attempt == sender.attempt &&
                              worker.in_flight && worker.step == sender.step && !worker.clocks[s];
      if (!is_awaited) return;
      worker.clocks[s] = {answer.step, std::max(sender.step + 1, answer.step)};
      worker.in_flight =
          !std::ranges::all_of(worker.clocks, [](const auto& clock) { return clock.has_value(); });
    });
  }

  struct Sender {
    int rank = 0;
    std::string uuid;
    uint64_t attempt = 0;
    uint64_t step = 0;
  };

  RandomStream random_;
  const int shard_count_;
  int ranks_;
  const uint64_t target_;
  TimePoint now_{};
  Coordinator coordinator_;
  std::vector<SimulatedShard> shards_;
  std::vector<SimulatedWorker> workers_;             // by rank
  std::map<int, std::vector<ShardClock>> versions_;  // by rank: of the push in flight
  std::deque<std::function<void()>> network_;
  PushId last_id_ = 0;
  uint64_t told_version_ = 0;
  std::map<PushId, Sender> senders_;
  std::map<uint64_t, std::vector<int>> made_;  // by step: who
};

TEST(BatchSharesSimulation, EachSampleIsPartOfItsStepOnceForEverySeed) {
  const char* one = std::getenv("MUSTER_SIMULATION_SEED");
  const char* many = std::getenv("MUSTER_SIMULATION_SEEDS");
  const uint64_t first = one != nullptr ? std::strtoull(one, nullptr, 10) : 1;
  const uint64_t count = one != nullptr ? 1 : many != nullptr ? std::strtoull(many, nullptr, 10) : 200;
  int changes = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    SCOPED_TRACE(absl::StrFormat("replay with MUSTER_SIMULATION_SEED=%d", seed));
    Simulation simulation(seed);
    simulation.Run();
    if (HasFatalFailure()) return;
    changes += simulation.changes();
  }
  EXPECT_TRUE(one != nullptr || changes > static_cast<int>(count)) << "hardly anything happens";
}

}  // namespace
}  // namespace muster
