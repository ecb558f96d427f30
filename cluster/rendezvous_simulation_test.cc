// A rendezvous under disturbances, by seed.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <random>

#include "base/random.h"
#include "cluster/rendezvous.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Ranks that die, stop, come back, lose their links and complain, at random. What they have is the step of
// their parameters; a group makes steps while all of its ranks are in it.
class Simulation {
 public:
  // Elastic: ranks join the job, and leave it, too.
  Simulation(int ranks, std::optional<int> min_ranks, bool is_elastic, uint64_t seed)
      : random_(seed), is_elastic_(is_elastic), processes_(ranks) {
    options_ = {.rank_names = Names(ranks), .min_ranks = min_ranks};
    rendezvous_.emplace(options_, now_);
    for (int rank = 0; rank < ranks; ++rank) Start(rank);
  }

  void Run(int events) {
    for (int i = 0; i < events && !testing::Test::HasFailure(); ++i) {
      now_ += milliseconds(random_() % 100);
      Disturb();
      GoOn();
    }
    // Without disturbances all are soon in one group.
    is_calm_ = true;
    for (Process& process : processes_) process.is_stopped = false;
    for (size_t rank = 0; rank < processes_.size(); ++rank) {
      if (!processes_[rank].is_up) Start(static_cast<int>(rank));
    }
    for (int i = 0; i < 300 && !testing::Test::HasFailure(); ++i) {
      now_ += milliseconds(100);
      GoOn();
    }
    const RankGroup& group = rendezvous_->group();
    EXPECT_FALSE(rendezvous_->end().has_value()) << *rendezvous_->end();
    EXPECT_FALSE(group.is_over) << group.why;
    EXPECT_EQ(group.ranks.size(), processes_.size());
    for (const Process& process : processes_) EXPECT_EQ(process.state.group, group.number);
    EXPECT_EQ(processes_[0].parameters, processes_[1].parameters);
  }

  uint64_t groups() const { return formed_.size(); }

 private:
  struct Process {
    bool is_up = false, is_stopped = false;
    std::optional<ParametersVersion> parameters;
    uint64_t bits = 0;  // a digest of the steps that were made, and in which groups
    RankState state;
  };

  static std::vector<std::string> Names(size_t ranks) {
    std::vector<std::string> names;
    for (size_t rank = 0; rank < ranks; ++rank) names.push_back("worker:" + std::to_string(rank));
    return names;
  }

  void Resize(size_t ranks) {
    processes_.resize(ranks);
    options_.rank_names = Names(ranks);
    rendezvous_->Resize(Names(ranks), now_);
  }

  void Start(int rank) {
    processes_[rank] = {.is_up = true};
    if (rank == 0) {
      // The coordinator goes with it: whoever is left comes again.
      options_.first_number += 1'000'000;
      rendezvous_.emplace(options_, now_);
      for (size_t other = 1; other < processes_.size(); ++other) {
        if (!processes_[other].is_up) continue;
        Leave(other);
        rendezvous_->Connect(static_cast<int>(other), ++last_process_, now_);
      }
    }
    rendezvous_->Connect(rank, ++last_process_, now_);
  }

  void Leave(size_t rank) {
    Process& process = processes_[rank];
    process.state.is_in_it = false;
    process.state.parameters = process.parameters;
  }

  void Disturb() {
    const int rank = static_cast<int>(random_() % processes_.size());
    Process& process = processes_[rank];
    switch (random_() % 40) {
      case 0:
        if (!process.is_up) break;
        process.is_up = false;
        if (rank == 0) {
          Start(0);
        } else {
          rendezvous_->Disconnect(rank, "its connection was closed", now_);
        }
        break;
      case 1:
      case 2:
        if (!process.is_up) Start(rank);
        break;
      case 3:
        if (rank > 0) process.is_stopped = true;
        break;
      case 4:
      case 5:
        process.is_stopped = false;
        break;
      case 6:
        if (!process.is_up || process.is_stopped || !process.state.is_in_it) break;
        Leave(rank);
        process.state.unreachable = static_cast<int>(random_() % processes_.size());
        break;
      case 7:
        if (is_elastic_) Resize(2 + random_() % 5);
        break;
      default:
        break;
    }
  }

  void GoOn() {
    for (size_t rank = 0; rank < processes_.size(); ++rank) {
      Process& process = processes_[rank];
      if (!process.is_up || process.is_stopped) continue;
      rendezvous_->Report(static_cast<int>(rank), process.state, now_);
      Obey(rank);
    }
    rendezvous_->Tick(now_);
    Check();
    Train();
  }

  void Obey(size_t rank) {
    const RankGroup& group = rendezvous_->group();
    Process& process = processes_[rank];
    if (process.state.is_in_it && (group.is_over || group.number != process.state.group)) Leave(rank);
    if (group.is_over) process.state.over = group.number;
    if (process.state.is_in_it || group.is_over || group.number <= process.state.group) return;
    if (!std::binary_search(group.ranks.begin(), group.ranks.end(), rank)) return;
    process.state = {.group = group.number, .is_in_it = true, .has_met = true, .over = process.state.over};
    if (group.source || process.parameters) return;
    process.parameters = {.step = 0, .group = group.number};
    process.bits = 0;
  }

  // All in the group: they have got the parameters, and some make a step that others may miss.
  void Train() {
    const RankGroup& group = rendezvous_->group();
    if (group.is_over) return;
    for (const int rank : group.ranks) {
      const Process& process = processes_[rank];
      if (!process.is_up || process.is_stopped || !process.state.is_in_it ||
          process.state.group != group.number) {
        return;
      }
    }
    const Process source = processes_[group.source.value_or(group.ranks[0])];
    ASSERT_TRUE(source.parameters.has_value());
    for (const int rank : group.ranks) {
      Process& process = processes_[rank];
      if (group.source && random_() % 8 == 0 && !is_calm_) return Leave(rank);  // before it has got them
      if (group.source) {
        process.bits = source.bits;
      } else {
        EXPECT_EQ(process.bits, source.bits);
      }
      process.parameters = {.step = source.parameters->step, .group = group.number};
    }
    const bool is_whole = is_calm_ || random_() % 4 != 0;
    for (const int rank : group.ranks) {
      if (!is_whole && random_() % 2 == 0) continue;
      ++processes_[rank].parameters->step;
      processes_[rank].bits = Mix64(source.bits ^ group.number);
    }
    if (!is_whole) Leave(group.ranks[random_() % group.ranks.size()]);
  }

  void Check() {
    const RankGroup& group = rendezvous_->group();
    if (group.number == 0 || group.is_over) return;
    EXPECT_TRUE(std::is_sorted(group.ranks.begin(), group.ranks.end()));
    const auto [place, is_new] = formed_.emplace(group.number, group.ranks);
    const int min_ranks = std::min(options_.min_ranks.value_or(1), rendezvous_->rank_count());
    EXPECT_TRUE(!is_new || static_cast<int>(group.ranks.size()) >= min_ranks);
    EXPECT_EQ(place->second, group.ranks) << "two groups with the number " << group.number;
    EXPECT_TRUE(!is_new || formed_.rbegin()->first == group.number) << "a number below an earlier one";
  }

  std::mt19937_64 random_;
  const bool is_elastic_;
  TimePoint now_ = TimePoint() + std::chrono::hours(1);
  uint64_t last_process_ = 0;
  RendezvousOptions options_;
  std::optional<Rendezvous> rendezvous_;
  std::vector<Process> processes_;
  bool is_calm_ = false;
  std::map<uint64_t, std::vector<int>> formed_;
};

// MUSTER_SIMULATION_SEEDS: how many.
void Simulate(bool is_elastic) {
  const char* const given = std::getenv("MUSTER_SIMULATION_SEEDS");
  const uint64_t seeds = given == nullptr ? 1000 : std::strtoull(given, nullptr, 10);
  uint64_t groups = 0;
  for (uint64_t seed = 0; seed < seeds && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    const int ranks = 2 + static_cast<int>(seed % 5);
    std::optional<int> min_ranks = 1 + static_cast<int>(seed % ranks);
    if (is_elastic && seed % 3 == 0) min_ranks.reset();
    Simulation simulation(ranks, min_ranks, is_elastic, seed);
    simulation.Run(500);
    groups += simulation.groups();
  }
  EXPECT_GT(groups, 10 * seeds);
}

TEST(RendezvousSimulation, AllEndUpInOneGroup) { Simulate(/*is_elastic=*/false); }

TEST(RendezvousSimulation, AlsoWhenRanksJoinTheJobAndLeaveIt) { Simulate(/*is_elastic=*/true); }

}  // namespace
}  // namespace muster
