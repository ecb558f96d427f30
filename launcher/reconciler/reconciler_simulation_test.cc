// MUSTER_SIMULATION_SEEDS=N runs seeds 0..N-1 (default 300); MUSTER_SIMULATION_SEED=N replays one and prints
// all that happened.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <iostream>

#include "launcher/reconciler/simulation.h"

namespace muster::reconcile {
namespace {

TEST(ReconcilerSimulationTest, InvariantsHoldUnderFaults) {
  const char* one = std::getenv("MUSTER_SIMULATION_SEED");
  const char* count = std::getenv("MUSTER_SIMULATION_SEEDS");
  const uint64_t first = one ? std::strtoull(one, nullptr, 10) : 0;
  const uint64_t end = one ? first + 1 : (count ? std::strtoull(count, nullptr, 10) : 300);
  std::map<std::string, int> tally;
  for (uint64_t seed = first; seed < end; ++seed) {
    Simulation simulation(seed);
    simulation.Run();
    for (const auto& [what, times] : simulation.tally()) tally[what] += times;
    if (one) {
      for (const std::string& line : simulation.transcript()) std::cout << line << "\n";
    }
    for (const std::string& violation : simulation.violations()) ADD_FAILURE() << violation;
    if (!simulation.violations().empty()) {
      std::cout << "replay with MUSTER_SIMULATION_SEED=" << seed << "\n";
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
  for (const auto& [what, times] : tally) std::cout << what << ": " << times << "\n";
  if (one) return;
  // A simulation in which nothing goes wrong would prove nothing.
  for (const char* fault : {"host crashes",
                            "host cut off",
                            "host is empty",
                            "orphan killed",
                            "begins anew",
                            "launcher killed",
                            "connection breaks",
                            "port lost",
                            "spec changed",
                            "host given up",
                            "placed on a spare",
                            "host let in again",
                            "crashes",
                            "dies",
                            "stop requested",
                            "succeeds though stopped",
                            "succeeds with a lost host",
                            "black hole",
                            "request swallowed",
                            "login refused",
                            "contents come slowly",
                            "record not written",
                            "grows",
                            "is to join",
                            "is to leave",
                            "joins",
                            "leaves"}) {
    EXPECT_GT(tally[fault], 0) << fault << " never happened in " << end << " seeds";
  }
}

// Not asserted: how long the decisions of a large first start take.
TEST(ReconcilerSimulationTest, PrintsTheCostOfTenThousandHosts) {
  constexpr int kHosts = 10000;
  Desired desired;
  for (int i = 0; i < kHosts; ++i) {
    const HostId host = absl::StrFormat("h%d", i);
    desired.hosts.push_back({host, "10.0.0.1", {"program"}});
    desired.tasks.push_back({absl::StrFormat("worker:%d", i), host, "v1", true, false});
  }
  const TimePoint now = Now();
  Reconciler reconciler(desired, {}, {}, now);
  std::vector<Event> events = {Tick{}};
  Result result = Result::kFailed;
  uint32_t round = 0;
  while (!events.empty()) {
    std::vector<Event> next;
    const size_t size = events.size();
    const TimePoint begin = Now();
    for (const Event& event : std::exchange(events, {})) {
      for (const Action& action : reconciler.Step(event, now)) {
        if (const auto* connect = std::get_if<Connect>(&action)) {
          next.push_back(HostConnected{connect->host, connect->connection});
          next.push_back(HostReported{connect->host, connect->connection, {}});
        } else if (const auto* contents = std::get_if<EnsureContents>(&action)) {
          next.push_back(ContentsReady{contents->host, contents->request});
        } else if (const auto* lease = std::get_if<LeasePort>(&action)) {
          next.push_back(PortLeased{lease->host, lease->request, 20000});
        } else if (const auto* start = std::get_if<StartTask>(&action)) {
          next.push_back(TaskStarted{start->host,
                                     start->request,
                                     {.task = start->task,
                                      .state = TaskState::kSucceeded,
                                      .generation = start->generation,
                                      .spec_hash = start->spec_hash,
                                      .incarnation = 1,
                                      .exit_code = 0}});
        } else if (const auto* finish = std::get_if<Finish>(&action)) {
          result = finish->outcome.result;
        }
      }
    }
    std::cout << "round " << ++round << ": " << size << " events in " << ToSeconds(Now() - begin) * 1e3
              << " ms\n";
    events = std::move(next);
  }
  EXPECT_EQ(result, Result::kSucceeded);
}

}  // namespace
}  // namespace muster::reconcile
