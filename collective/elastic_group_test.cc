// Groups that are made anew, with real sockets: ranks are threads here.
#include "collective/elastic_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <barrier>
#include <latch>
#include <sstream>
#include <thread>

#include "base/certificates.h"
#include "base/logging.h"
#include "tests/support/forbidden_calls.h"
#include "tests/support/free_port.h"
#include "tests/support/own_network.h"

namespace muster {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;

class ElasticGroupTest : public testing::Test {
 protected:
  // As in programs, before there are threads: of what happens inside spdlog's own library when two are the
  // first to log, ThreadSanitizer sees only half.
  static void SetUpTestSuite() { InitLogging(""); }

  ElasticGroupTest() : authority_(*MakeAuthority("test")) {
    for (int rank = 0; rank < 3; ++rank) {
      options_.all.members.push_back({{Role::kWorker, rank}, FreeAddress()});
    }
    options_.min_ranks = 1;
    options_.connect_timeout = seconds(20);
    options_.operation_timeout = seconds(20);
  }

  std::unique_ptr<ElasticGroup> Make(int rank, uint64_t incarnation = 1) {
    ElasticGroupOptions options = options_;
    options.all.rank = rank;
    options.incarnation = incarnation;
    const auto certificate = IssueCertificate(authority_, TlsName({Role::kWorker, rank}));
    std::shared_ptr<TlsContext> tls =
        *TlsContext::Create({authority_.certificate_pem, certificate->certificate_pem, certificate->key_pem});
    auto listener = PeerListener::Listen(options.all.members[rank].address, std::move(tls));
    EXPECT_TRUE(listener.ok()) << listener.status();
    return std::make_unique<ElasticGroup>(options, *std::move(listener));
  }

  // How many ranks have taken part.
  static absl::StatusOr<float> Count(ElasticGroup& group) {
    float value = 1;
    MUSTER_RETURN_IF_ERROR(group.Run(AllReduce({&value, 1}, {&value, 1})));
    return value;
  }
  // Until the group is over.
  static absl::Status CountOn(ElasticGroup& group, float expected) {
    const TimePoint deadline = Now() + seconds(20);
    while (Now() < deadline) {
      const absl::StatusOr<float> count = Count(group);
      if (!count.ok()) return count.status();
      EXPECT_EQ(*count, expected);
    }
    return absl::OkStatus();
  }

  // How it ends for a rank that goes on with whoever is there.
  static absl::Status End(ElasticGroup& group, float expected) {
    while (true) {
      MUSTER_RETURN_IF_ERROR(group.Join({}).status());
      const absl::Status status = CountOn(group, expected);
      if (!absl::IsCancelled(status)) return status;
    }
  }

  ElasticGroupOptions options_;
  const Certificate authority_;
};

TEST_F(ElasticGroupTest, TheRestGoOnAndTakeBackWhoReturns) {
  std::latch are_two(2);
  const auto stays = [&](int rank) {
    const auto group = Make(rank);
    absl::StatusOr<GroupPlace> place = group->Join({});
    ASSERT_TRUE(place.ok()) << place.status();
    EXPECT_THAT(place->ranks, ElementsAre(0, 1, 2));
    EXPECT_EQ(place->position, rank);
    EXPECT_FALSE(place->source.has_value());
    const absl::Status over = CountOn(*group, 3);
    EXPECT_TRUE(absl::IsCancelled(over)) << over;
    place = group->Join(ParametersVersion{.step = 5, .group = place->number});
    ASSERT_TRUE(place.ok()) << place.status();
    EXPECT_THAT(place->ranks, ElementsAre(0, 1));
    EXPECT_FALSE(place->source.has_value());
    are_two.count_down();
    EXPECT_TRUE(absl::IsCancelled(CountOn(*group, 2)));
    place = group->Join(ParametersVersion{.step = 6u + rank, .group = place->number});
    ASSERT_TRUE(place.ok()) << place.status();
    EXPECT_THAT(place->ranks, ElementsAre(0, 1, 2));
    EXPECT_EQ(place->source, 1);
    EXPECT_EQ(*Count(*group), 3);
    EXPECT_GT(group->traffic().sent_bytes, 0u);
    EXPECT_EQ(group->Finish(9), absl::OkStatus());
  };
  const auto leaves = [&] {
    auto group = Make(2);
    ASSERT_TRUE(group->Join({}).ok());
    EXPECT_EQ(*Count(*group), 3);
    group = nullptr;
    are_two.wait();
    group = Make(2, 2);
    const auto place = group->Join({});
    ASSERT_TRUE(place.ok()) << place.status();
    EXPECT_EQ(place->source, 1);
    EXPECT_EQ(*Count(*group), 3);
    EXPECT_EQ(group->Finish(9), absl::OkStatus());
  };
  std::jthread second([&] { stays(1); }), third(leaves);
  stays(0);
}

TEST_F(ElasticGroupTest, AnotherRankZeroIsFoundAgain) {
  const auto stays = [&](int rank) {
    const auto group = Make(rank);
    const auto first = group->Join({});
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_TRUE(absl::IsCancelled(CountOn(*group, 3)));
    const auto second = group->Join(ParametersVersion{.step = 7, .group = first->number});
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_EQ(second->source, 1);
    EXPECT_GT(second->number, first->number);
    EXPECT_EQ(*Count(*group), 3);
    EXPECT_EQ(group->Finish(7), absl::OkStatus());
  };
  std::jthread second([&] { stays(1); }), third([&] { stays(2); });
  auto group = Make(0);
  ASSERT_TRUE(group->Join({}).ok());
  EXPECT_EQ(*Count(*group), 3);
  group = nullptr;
  group = Make(0, 2);
  const auto place = group->Join({});
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_EQ(place->source, 1);
  EXPECT_EQ(*Count(*group), 3);
  EXPECT_EQ(group->Finish(7), absl::OkStatus());
}

TEST_F(ElasticGroupTest, WhoComesWhenAllIsDoneIsTold) {
  // The last one comes when all the others know, and have hung up.
  std::jthread late([&] {
    for (const int rank : {1, 2}) {
      const auto group = Make(rank);
      const auto place = group->Join({});
      ASSERT_TRUE(place.ok()) << place.status();
      EXPECT_EQ(place->concluded, 100u);
    }
  });
  EXPECT_EQ(Make(0)->Finish(100), absl::OkStatus());
}

TEST_F(ElasticGroupTest, AnotherGenerationOfTheClusterHasNoPartInTheJob) {
  options_.all.members.resize(2);
  options_.min_ranks = 2;
  options_.all.generation = 2;
  const auto first = Make(0);
  const std::string address = std::exchange(options_.all.members[1].address, "127.0.0.1:0");
  // An older one, whatever it computes, is told; a later one is hung up on, until its own rank 0 has come.
  options_.all.generation = 1;
  options_.all.fingerprint = 0xab;
  const absl::Status older = Make(1)->Join({}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(older)) << older;
  EXPECT_THAT(std::string(older.message()), HasSubstr("generation 2 of the cluster, the other rank of 1"));
  options_.all.generation = 3;
  options_.connect_timeout = milliseconds(300);
  const absl::Status later = Make(1)->Join({}).status();
  EXPECT_TRUE(absl::IsUnavailable(later) || absl::IsDeadlineExceeded(later)) << later;
  options_.connect_timeout = seconds(20);
  options_.all.generation = 2;
  options_.all.fingerprint = 0;
  options_.all.members[1].address = address;
  std::jthread second([&] { EXPECT_TRUE(Make(1)->Join({}).ok()); });
  const auto place = first->Join({});
  EXPECT_TRUE(place.ok()) << place.status();
}

TEST_F(ElasticGroupTest, WhatOneCannotGoOnWithEndsAll) {
  const auto hears = [&](int rank) {
    const absl::Status status = End(*Make(rank), 3);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), testing::StartsWith("worker:1: it has the hiccups"));
    EXPECT_LT(status.message().size(), 10'000u);
  };
  std::jthread first([&] { hears(0); }), third([&] { hears(2); });
  const auto group = Make(1);
  ASSERT_TRUE(group->Join({}).ok());
  group->Fail("it has the hiccups" + std::string(100'000, '!'));
}

TEST_F(ElasticGroupTest, WhoIsMissingIsNamedAtTheEnd) {
  options_.connect_timeout = milliseconds(300);
  options_.min_ranks = 3;
  std::jthread first([&] {
    const absl::Status status = Make(0)->Join({}).status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("worker:2"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("has not connected: waited 300ms in vain"));
  });
  first.join();
  const absl::Status status = Make(1)->Join({}).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("worker:0"));
}

TEST_F(ElasticGroupTest, ARankThatMovesIsFoundAgain) {
  options_.min_ranks = 3;
  for (int moves = 0; moves < 3; ++moves) {
    SCOPED_TRACE(moves);
    ClusterSpec cluster;
    for (GroupMember& member : options_.all.members) {
      member.address = FreeAddress();
      cluster.workers.push_back(member.address);
    }
    std::vector<std::shared_ptr<ClusterView>> views;
    std::vector<std::unique_ptr<ElasticGroup>> groups;
    for (int rank = 0; rank < 3; ++rank) {
      views.push_back(std::make_shared<ClusterView>(cluster, TaskId{Role::kWorker, rank}));
      options_.view = views.back();
      groups.push_back(Make(rank));
    }
    cluster.workers[moves] = FreeAddress("127.0.0.2");
    std::barrier have_met(3);
    const auto stays = [&](int rank) {
      ElasticGroup& group = *groups[rank];
      const auto first = group.Join({});
      ASSERT_TRUE(first.ok()) << first.status();
      EXPECT_EQ(*Count(group), 3);
      have_met.arrive_and_wait();
      EXPECT_TRUE(*views[rank]->Update({.generation = 1, .cluster = cluster}));
      const absl::Status over = CountOn(group, 3);
      EXPECT_TRUE(absl::IsCancelled(over)) << over;
      const auto second = group.Join(ParametersVersion{.step = 7, .group = first->number});
      ASSERT_TRUE(second.ok()) << second.status();
      EXPECT_THAT(second->ranks, ElementsAre(0, 1, 2));
      EXPECT_EQ(*Count(group), 3);
      have_met.arrive_and_wait();
      // And spoken of as there.
      if (rank == moves) return groups[rank].reset();
      EXPECT_THAT(
          std::string(CountOn(group, 3).message()),
          testing::StartsWith(absl::StrFormat("worker:%d (%s) has gone", moves, cluster.workers[moves])));
    };
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < 3; ++rank) threads.emplace_back(stays, rank);
  }
}

// Where it has listened in between nobody is any more.
TEST_F(ElasticGroupTest, ARankZeroThatMovesThereAndBackFindsItself) {
  options_.min_ranks = 2;
  std::jthread([&] {
    if (const absl::Status entered = EnterOwnNetwork(); !entered.ok()) GTEST_SKIP() << entered;
    const std::string hosts[] = {"10.98.0.1", "10.98.0.2"};
    ASSERT_EQ(Ip({"address", "add", hosts[0], "dev", "lo"}), absl::OkStatus());
    options_.all.members = {{{Role::kWorker, 0}, FreeAddress(hosts[0].c_str())},
                            {{Role::kWorker, 1}, FreeAddress()}};
    ClusterSpec cluster;
    for (const GroupMember& member : options_.all.members) cluster.workers.push_back(member.address);
    const std::string port = cluster.workers[0].substr(hosts[0].size());
    std::vector<std::shared_ptr<ClusterView>> views;
    std::vector<std::unique_ptr<ElasticGroup>> groups;
    for (int rank = 0; rank < 2; ++rank) {
      views.push_back(std::make_shared<ClusterView>(cluster, TaskId{Role::kWorker, rank}));
      options_.view = views.back();
      groups.push_back(Make(rank));
    }
    uint64_t moves = 0;
    std::barrier have_met(2, [&]() noexcept {
      if (++moves > 2) return;
      const std::string &from = hosts[(moves - 1) % 2], &to = hosts[moves % 2];
      EXPECT_EQ(Ip({"address", "add", to, "dev", "lo"}), absl::OkStatus());
      EXPECT_EQ(Ip({"address", "del", from + "/32", "dev", "lo"}), absl::OkStatus());
      cluster.workers[0] = to + port;
      for (const auto& view : views) EXPECT_TRUE(*view->Update({.generation = moves, .cluster = cluster}));
    });
    const auto stays = [&](int rank) {
      ElasticGroup& group = *groups[rank];
      for (uint64_t step = 0; step < 3; ++step) {
        if (step > 0) {
          EXPECT_TRUE(absl::IsCancelled(CountOn(group, 2)));
        }
        const auto place = group.Join(ParametersVersion{.step = step});
        ASSERT_TRUE(place.ok()) << place.status();
        EXPECT_EQ(*Count(group), 2);
        have_met.arrive_and_wait();
      }
    };
    std::jthread second([&] { stays(1); });
    stays(0);
  }).join();
}

TEST_F(ElasticGroupTest, RanksJoinTheJobAndLeaveIt) {
  ClusterSpec cluster;
  for (GroupMember& member : options_.all.members) {
    member.address = FreeAddress();
    cluster.workers.push_back(member.address);
  }
  const std::string third = cluster.workers.back();
  cluster.workers.pop_back();
  std::vector<std::shared_ptr<ClusterView>> views;
  const auto begin = [&](int rank) {
    views.push_back(std::make_shared<ClusterView>(cluster, TaskId{Role::kWorker, rank},
                                                  ClusterView::Workers::kMayComeAndGo));
    options_.view = views.back();
    options_.all.members.resize(cluster.workers.size());
    for (size_t i = 0; i < cluster.workers.size(); ++i) {
      options_.all.members[i] = {.task = {Role::kWorker, static_cast<int>(i)}, .address = cluster.workers[i]};
    }
    return Make(rank);
  };
  std::vector<std::unique_ptr<ElasticGroup>> groups;
  for (int rank = 0; rank < 2; ++rank) groups.push_back(begin(rank));
  cluster.workers.push_back(third);
  groups.push_back(begin(2));
  std::latch are_two(2), are_three(3), has_left(1);
  const auto joins = [&](int rank, std::optional<ParametersVersion> parameters) {
    const auto place = groups[rank]->Join(parameters);
    EXPECT_TRUE(place.ok()) << place.status();
    return place.ok() ? *place : GroupPlace{};
  };
  const auto stays = [&](int rank) {
    ElasticGroup& group = *groups[rank];
    const uint64_t first = joins(rank, {}).number;
    EXPECT_EQ(*Count(group), 2);
    are_two.arrive_and_wait();
    EXPECT_TRUE(*views[rank]->Update({.generation = 1, .cluster = cluster}));
    EXPECT_TRUE(absl::IsCancelled(CountOn(group, 2)));
    const GroupPlace second = joins(rank, ParametersVersion{.step = 7, .group = first});
    EXPECT_THAT(second.ranks, ElementsAre(0, 1, 2));
    EXPECT_TRUE(second.source.has_value());
    EXPECT_EQ(*Count(group), 3);
    are_three.arrive_and_wait();
    EXPECT_TRUE(*views[rank]->Update(
        {.generation = 2, .cluster = {.workers = {cluster.workers[0], cluster.workers[1]}}}));
    EXPECT_TRUE(absl::IsCancelled(CountOn(group, 3)));
    EXPECT_THAT(joins(rank, ParametersVersion{.step = 8, .group = second.number}).ranks, ElementsAre(0, 1));
    EXPECT_EQ(*Count(group), 2);
    has_left.wait();
    EXPECT_EQ(group.Finish(8), absl::OkStatus());
  };
  const auto visits = [&] {
    are_two.wait();
    EXPECT_THAT(joins(2, {}).ranks, ElementsAre(0, 1, 2));
    EXPECT_EQ(*Count(*groups[2]), 3);
    are_three.arrive_and_wait();
    absl::Status dismissed = CountOn(*groups[2], 3);
    if (absl::IsCancelled(dismissed)) dismissed = groups[2]->Join(ParametersVersion{.step = 8}).status();
    EXPECT_TRUE(absl::IsAborted(dismissed)) << dismissed;
    EXPECT_THAT(std::string(dismissed.message()), HasSubstr("has no part in the job any more"));
    has_left.count_down();
  };
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < 2; ++rank) threads.emplace_back(stays, rank);
  threads.emplace_back(visits);
}

TEST_F(ElasticGroupTest, WhoHasNoClusterFileCannotGoOnWithOneThatJoins) {
  ClusterSpec cluster;
  for (const GroupMember& member : options_.all.members) cluster.workers.push_back(member.address);
  const ClusterSpec grown = cluster;
  cluster.workers.pop_back();
  const auto view_of = [](const ClusterSpec& known, int rank) {
    return std::make_shared<ClusterView>(known, TaskId{Role::kWorker, rank},
                                         ClusterView::Workers::kMayComeAndGo);
  };
  const auto view = view_of(cluster, 0);
  options_.view = view_of(grown, 2);
  const auto joins = Make(2);
  options_.all.members.pop_back();
  options_.view = nullptr;
  auto cannot = Make(1);
  options_.view = view;
  const auto first = Make(0);
  std::latch are_two(2);
  std::jthread second([&] {
    ASSERT_TRUE(cannot->Join({}).ok());
    are_two.count_down();
    EXPECT_TRUE(absl::IsCancelled(CountOn(*cannot, 2)));
    const absl::Status status = cannot->Join({}).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--cluster_file"));
    cannot = nullptr;
  });
  std::jthread third([&] {
    are_two.wait();
    const auto place = joins->Join({});
    ASSERT_TRUE(place.ok()) << place.status();
    EXPECT_THAT(place->ranks, ElementsAre(0, 2));
    EXPECT_EQ(*Count(*joins), 2);
    EXPECT_EQ(joins->Finish(1), absl::OkStatus());
  });
  auto place = first->Join({});
  ASSERT_TRUE(place.ok()) << place.status();
  are_two.arrive_and_wait();
  EXPECT_TRUE(*view->Update({.generation = 1, .cluster = grown}));
  EXPECT_TRUE(absl::IsCancelled(CountOn(*first, 2)));
  place = first->Join(ParametersVersion{.step = 1, .group = place->number});
  ASSERT_TRUE(place.ok()) << place.status();
  EXPECT_THAT(place->ranks, ElementsAre(0, 2));
  EXPECT_EQ(*Count(*first), 2);
  EXPECT_EQ(first->Finish(1), absl::OkStatus());
}

TEST_F(ElasticGroupTest, OfTwoProcessesOfATaskTheLaterOneIsTaken) {
  options_.all.members.resize(2);
  options_.all.members[1].address = "127.0.0.1:0";  // rank 0 does not dial it
  std::jthread first([&] { EXPECT_EQ(End(*Make(0), 2).message(), "worker:1: that is enough"); });
  std::latch is_there(1);
  std::jthread second([&] {
    const auto old = Make(1, 2);
    EXPECT_TRUE(old->Join({}).ok());
    is_there.count_down();
    const absl::Status replaced = End(*old, 2);
    EXPECT_TRUE(absl::IsAborted(replaced)) << replaced;
    EXPECT_THAT(std::string(replaced.message()), HasSubstr("another process of this task"));
  });
  is_there.wait();
  const auto later = Make(1, 3);
  second.join();
  const absl::Status refused = Make(1, 1)->Join({}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("a later process of worker:1"));
  EXPECT_TRUE(later->Join({}).ok());
  later->Fail("that is enough");
}

// To find out again would cost each group the time that the others of the host wait for it.
TEST_F(ElasticGroupTest, WhereMemoryCannotBeSharedItIsTriedOnce) {
  options_.all.members.resize(2);
  std::ostringstream said;
  auto& sinks = spdlog::default_logger()->sinks();
  sinks.push_back(std::make_shared<spdlog::sinks::ostream_sink_mt>(said));
  std::barrier have_counted(2);
  const auto joins_twice = [&](int rank) {
    if (rank == 1) {
      ASSERT_EQ(ForbidLocalConnections(), absl::OkStatus());
    }
    const auto group = Make(rank);
    for (uint64_t step : {1, 2}) {
      const auto place = group->Join(ParametersVersion{.step = step});
      ASSERT_TRUE(place.ok()) << place.status();
      EXPECT_EQ(*Count(*group), 2);
      have_counted.arrive_and_wait();
    }
    EXPECT_EQ(group->Finish(2), absl::OkStatus());
  };
  std::thread second([&] { joins_twice(1); });
  joins_twice(0);
  second.join();
  sinks.pop_back();
  int times = 0;
  const std::string text = said.str();
  for (size_t at = 0; (at = text.find("ranks of this host use TCP", at)) != std::string::npos; ++at) ++times;
  EXPECT_EQ(times, 2) << "once by each\n" << text;
}

// A process of an earlier job, which finds the new one's rank 0 where its own was.
TEST_F(ElasticGroupTest, WhoIsLeftOverFromAnotherJobDoesNotEndThisOne) {
  options_.all.members.resize(2);
  options_.min_ranks.reset();
  const auto first = Make(0);
  const std::string address = std::exchange(options_.all.members[1].address, "127.0.0.1:0");
  options_.all.fingerprint = 0xab;
  const absl::Status left_over = Make(1)->Join({}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(left_over)) << left_over;
  EXPECT_THAT(std::string(left_over.message()), HasSubstr("00000000000000ab"));
  options_.all.fingerprint = 0;
  options_.all.members[1].address = address;
  std::jthread second([&] {
    const auto place = Make(1)->Join({});
    EXPECT_TRUE(place.ok()) << place.status();
  });
  const auto place = first->Join({});
  EXPECT_TRUE(place.ok()) << place.status();
}

}  // namespace
}  // namespace muster
