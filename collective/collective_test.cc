// One suite over all backends: what every Collective has to do.
#include "collective/collective.h"

#include <absl/cleanup/cleanup.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <functional>
#include <numeric>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "base/certificates.h"
#include "base/random.h"
#include "collective/in_process.h"
#include "collective/native.h"
#if defined(MUSTER_GLOO)
#include "base/file.h"
#include "collective/gloo.h"
#endif
#if defined(MUSTER_NCCL)
#include <cuda_runtime_api.h>

#include "collective/nccl.h"
#endif

namespace muster {
namespace {

using testing::HasSubstr;

// What a group of n ranks is made of, in this process.
class TestGroup {
 public:
  virtual ~TestGroup() = default;
  /// On the thread of that rank.
  virtual absl::StatusOr<std::unique_ptr<Collective>> Make(int rank) = 0;
};

class InProcessTestGroup final : public TestGroup {
 public:
  InProcessTestGroup(int size, Duration timeout) : ranks_(MakeInProcess(size, timeout)) {}
  absl::StatusOr<std::unique_ptr<Collective>> Make(int rank) override { return std::move(ranks_[rank]); }

 private:
  std::vector<std::unique_ptr<Collective>> ranks_;
};

class SingleRankTestGroup final : public TestGroup {
 public:
  absl::StatusOr<std::unique_ptr<Collective>> Make(int) override { return MakeSingleRank(); }
};

class NativeTestGroup final : public TestGroup {
 public:
  NativeTestGroup(int size, Duration timeout, bool with_tls, std::function<bool(int)> shares_memory)
      : timeout_(timeout), shares_memory_(std::move(shares_memory)), interrupts_(size) {
    const auto authority = MakeAuthority("test");
    for (int rank = 0; rank < size; ++rank) {
      const TaskId task{Role::kWorker, rank};
      std::shared_ptr<TlsContext> tls;
      if (with_tls) {
        const auto certificate = IssueCertificate(*authority, TlsName(task));
        tls = *TlsContext::Create(
            {authority->certificate_pem, certificate->certificate_pem, certificate->key_pem});
      }
      auto listener = PeerListener::Listen("127.0.0.1:0", tls);
      MUSTER_CHECK(listener.ok(), listener.status().ToString());
      identity_.members.push_back({task, (*listener)->address()});
      listeners_.push_back(*std::move(listener));
    }
    identity_.generation = 7;
    identity_.fingerprint = 0x1234;
  }

  absl::StatusOr<std::unique_ptr<Collective>> Make(int rank) override {
    NativeOptions options{.identity = identity_,
                          .connect_timeout = std::chrono::seconds(30),
                          .operation_timeout = timeout_,
                          .shares_memory = shares_memory_(rank)};
    options.identity.rank = rank;
    return MakeNative(options, *listeners_[rank], interrupts_[rank]);
  }

 private:
  const Duration timeout_;
  const std::function<bool(int)> shares_memory_;
  GroupIdentity identity_;
  std::vector<std::unique_ptr<PeerListener>> listeners_;
  std::vector<Interrupt> interrupts_;
};

#if defined(MUSTER_GLOO)
class GlooTestGroup final : public TestGroup {
 public:
  GlooTestGroup(int size, Duration timeout) : size_(size), timeout_(timeout) {}
  absl::StatusOr<std::unique_ptr<Collective>> Make(int rank) override {
    return MakeGloo({.rank = rank, .size = size_, .meeting_folder = folder_.path(), .timeout = timeout_});
  }

 private:
  const int size_;
  const Duration timeout_;
  const TemporaryDirectory folder_;
};
#endif

#if defined(MUSTER_NCCL)
// Rank i is on GPU i.
class NcclTestGroup final : public TestGroup {
 public:
  NcclTestGroup(int size, Duration timeout) : interrupts_(size) {
    for (int rank = 0; rank < size; ++rank) {
      options_.names.push_back(absl::StrFormat("worker:%d", rank));
      auto gpu = MakeNccl(rank);
      MUSTER_CHECK(gpu.ok(), gpu.status().ToString());
      gpus_.push_back(*std::move(gpu));
    }
    options_.operation_timeout = timeout;
    auto id = gpus_[0]->MakeGroupId();
    MUSTER_CHECK(id.ok(), id.status().ToString());
    id_ = *id;
  }

  absl::StatusOr<std::unique_ptr<Collective>> Make(int rank) override {
    GpuGroupOptions options = options_;
    options.rank = rank;
    MUSTER_ASSIGN_OR_RETURN(auto backend, gpus_[rank]->Meet(options, id_, interrupts_[rank]));
    return MakeQueued(std::move(backend));
  }

 private:
  GpuGroupOptions options_;
  std::vector<std::unique_ptr<GpuCollectives>> gpus_;
  GpuGroupId id_;
  std::vector<Interrupt> interrupts_;
};
#endif

// Empty: there is all that a group of that size needs.
std::string WhatNcclLacks([[maybe_unused]] int size) {
#if defined(MUSTER_NCCL)
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return absl::StrFormat("no GPU: %s", cudaGetErrorString(error));
  if (count < size) return absl::StrFormat("there are %d GPUs", count);
  return std::string(MakeNccl(0).status().message());
#else
  return "built without it";
#endif
}

struct Case {
  std::string backend;
  int size;
  friend std::ostream& operator<<(std::ostream& out, const Case& of) {
    return out << of.size << " of " << of.backend;
  }
};

std::unique_ptr<TestGroup> MakeGroup(const Case& of, Duration timeout = std::chrono::seconds(60)) {
  if (of.backend == "single_rank") return std::make_unique<SingleRankTestGroup>();
  if (of.backend == "in_process") return std::make_unique<InProcessTestGroup>(of.size, timeout);
#if defined(MUSTER_GLOO)
  if (of.backend == "gloo") return std::make_unique<GlooTestGroup>(of.size, timeout);
#endif
#if defined(MUSTER_NCCL)
  if (of.backend == "nccl") return std::make_unique<NcclTestGroup>(of.size, timeout);
#endif
  std::function<bool(int)> shares = [](int) { return false; };
  if (of.backend == "shared_memory") shares = [](int) { return true; };
  if (of.backend == "mixed")
    shares = [](int rank) { return rank != 1; };  // as if rank 1 had a host to itself
  return std::make_unique<NativeTestGroup>(of.size, timeout, of.backend == "tls", shares);
}

class CollectiveTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (GetParam().backend == "gloo") std::signal(SIGPIPE, SIG_IGN);
    if (!is_nccl()) return;
    const std::string lacks = WhatNcclLacks(size());
    if (!lacks.empty()) GTEST_SKIP() << lacks;
  }

  bool is_nccl() const { return GetParam().backend == "nccl"; }
  int size() const { return GetParam().size; }

  // `body` for each rank, on a thread of its own.
  void OnAllRanks(const std::function<void(Collective&)>& body,
                  Duration timeout = std::chrono::seconds(60)) const {
    const auto group = MakeGroup(GetParam(), timeout);
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size(); ++rank) {
      threads.emplace_back([&, rank] {
        const auto collective = group->Make(rank);
        ASSERT_TRUE(collective.ok()) << collective.status();
        ASSERT_EQ((*collective)->rank(), rank);
        ASSERT_EQ((*collective)->size(), size());
        body(**collective);
      });
    }
  }
};

// Sizes in floats around blocks, parts and pieces.
const std::vector<size_t> kSizes = {
    0, 1, 15, 16, 17, 100, 4096, 4097, 5000, 16383, 16500, (64 << 10) + 1, 131072, 262147, (1 << 20) + 5};

// Small whole numbers: their sums are exact.
float Value(int rank, size_t i) { return static_cast<float>((i * 7 + rank * 13) % 101) - 50; }

std::vector<float> Values(int rank, size_t size) {
  std::vector<float> values(size);
  for (size_t i = 0; i < size; ++i) values[i] = Value(rank, i);
  return values;
}

std::vector<float> SumOfValues(int ranks, size_t size) {
  std::vector<float> sum(size);
  for (size_t i = 0; i < size; ++i) {
    for (int rank = 0; rank < ranks; ++rank) sum[i] += Value(rank, i);
  }
  return sum;
}

TEST_P(CollectiveTest, SumsAreThoseOfAllRanks) {
  OnAllRanks([&](Collective& group) {
    for (const size_t size : kSizes) {
      const std::vector<float> input = Values(group.rank(), size);
      std::vector<float> output(size, -1);
      ASSERT_EQ(group.Run(AllReduce(input, output)), absl::OkStatus());
      ASSERT_EQ(output, SumOfValues(group.size(), size)) << size;
      std::vector<float> in_place = input;
      ASSERT_EQ(group.Run(AllReduce(in_place, in_place)), absl::OkStatus());
      ASSERT_EQ(in_place, output) << size;
    }
  });
}

TEST_P(CollectiveTest, AllRanksHaveTheSameBits) {
  OnAllRanks([&](Collective& group) {
    for (const size_t size : {size_t{50}, size_t{40000}, size_t{300001}}) {
      RandomStream random(1, static_cast<uint64_t>(group.rank()));
      std::vector<float> values(size);
      for (float& value : values) value = static_cast<float>(random.NextDouble() - 0.5);
      ASSERT_EQ(group.Run(AllReduce(values, values)), absl::OkStatus());
      // Also twice in a row, and from run to run of the same group.
      std::vector<std::byte> all(values.size() * sizeof(float) * group.size());
      ASSERT_EQ(group.Run(AllGather(std::as_bytes(std::span(values)), all)), absl::OkStatus());
      for (int rank = 0; rank < group.size(); ++rank) {
        ASSERT_EQ(std::memcmp(all.data() + rank * size * sizeof(float), values.data(), size * sizeof(float)),
                  0)
            << "rank " << rank << " of " << size << " floats";
      }
      for (size_t i = 0; i < size; i += 997) {
        double sum = 0;
        for (int rank = 0; rank < group.size(); ++rank) {
          RandomStream theirs(1, static_cast<uint64_t>(rank));
          for (size_t skipped = 0; skipped < i; ++skipped) theirs.Next();
          sum += static_cast<float>(theirs.NextDouble() - 0.5);
        }
        // Each of the additions rounds by half a unit in the last place of at most the number of ranks.
        ASSERT_NEAR(values[i], sum, group.size() * group.size() * 0x1p-24);
      }
    }
  });
}

TEST_P(CollectiveTest, BroadcastsGoToAll) {
  OnAllRanks([&](Collective& group) {
    for (const size_t size : {size_t{0}, size_t{1}, size_t{1000}, size_t{700001}}) {
      for (int root = 0; root < group.size(); ++root) {
        std::vector<std::byte> data(size);
        for (size_t i = 0; i < size; ++i) data[i] = static_cast<std::byte>(i * 31 + group.rank());
        ASSERT_EQ(group.Run(Broadcast(data, root)), absl::OkStatus());
        for (size_t i = 0; i < size; ++i) {
          ASSERT_EQ(data[i], static_cast<std::byte>(i * 31 + root)) << i << " of " << size;
        }
      }
    }
  });
}

TEST_P(CollectiveTest, GatheredIsEachRanksOwn) {
  OnAllRanks([&](Collective& group) {
    for (const size_t size : {size_t{0}, size_t{1}, size_t{77}, size_t{300007}}) {
      std::vector<std::byte> input(size), output(size * group.size());
      for (size_t i = 0; i < size; ++i) input[i] = static_cast<std::byte>(i * 3 + group.rank());
      ASSERT_EQ(group.Run(AllGather(input, output)), absl::OkStatus());
      for (int rank = 0; rank < group.size(); ++rank) {
        for (size_t i = 0; i < size; ++i) {
          ASSERT_EQ(output[rank * size + i], static_cast<std::byte>(i * 3 + rank));
        }
      }
    }
  });
}

TEST_P(CollectiveTest, NobodyPassesABarrierBeforeAllHaveCome) {
  std::atomic<int> come = 0;
  OnAllRanks([&](Collective& group) {
    for (int round = 1; round <= 20; ++round) {
      ++come;
      ASSERT_EQ(group.Run(Barrier()), absl::OkStatus());
      ASSERT_GE(come, round * group.size());
      ASSERT_EQ(group.Run(Barrier()), absl::OkStatus());
    }
  });
}

TEST_P(CollectiveTest, WhatIsStartedIsDoneInOrder) {
  OnAllRanks([&](Collective& group) {
    const std::vector<float> input = Values(group.rank(), 70000);
    std::vector<float> sum(input.size()), twice(input.size());
    std::vector<Ticket> tickets;
    for (size_t begin = 0; begin < input.size(); begin += 10000) {
      const auto part = [&](auto& values) { return std::span(values).subspan(begin, 10000); };
      tickets.push_back(group.Start(AllReduce(part(input), part(sum))));
    }
    ASSERT_EQ(group.Wait(tickets[2]), absl::OkStatus());
    const std::vector<float> expected = SumOfValues(group.size(), input.size());
    ASSERT_TRUE(std::equal(sum.begin(), sum.begin() + 30000, expected.begin()));
    ASSERT_EQ(group.Run(AllReduce(input, twice)), absl::OkStatus());  // behind what was started
    ASSERT_EQ(sum, expected);
    ASSERT_EQ(twice, expected);
    for (const Ticket ticket : tickets) ASSERT_EQ(group.Wait(ticket), absl::OkStatus());
  });
}

TEST_P(CollectiveTest, AnyOrderOfOperationsWorks) {
  for (uint64_t seed = 0; seed < 3; ++seed) {
    OnAllRanks([&](Collective& group) {
      RandomStream random(seed);  // the same on all ranks
      RandomStream own(seed, 1 + static_cast<uint64_t>(group.rank()));
      for (int i = 0; i < 60; ++i) {
        if (own.NextBelow(8) == 0) std::this_thread::yield();
        const size_t size = random.NextBelow(2) == 0 ? random.NextBelow(3000) : random.NextBelow(200000);
        switch (random.NextBelow(4)) {
          case 0: {
            std::vector<float> values = Values(group.rank(), size);
            ASSERT_EQ(group.Run(AllReduce(values, values)), absl::OkStatus());
            ASSERT_EQ(values, SumOfValues(group.size(), size)) << "operation " << i << " of seed " << seed;
            break;
          }
          case 1: {
            const auto root = static_cast<int>(random.NextBelow(static_cast<uint64_t>(group.size())));
            std::vector<float> values = Values(group.rank(), size);
            ASSERT_EQ(group.Run(Broadcast(std::as_writable_bytes(std::span(values)), root)),
                      absl::OkStatus());
            ASSERT_EQ(values, Values(root, size)) << "operation " << i << " of seed " << seed;
            break;
          }
          case 2: {
            const std::vector<float> values = Values(group.rank(), size / 10);
            std::vector<float> all(values.size() * group.size());
            ASSERT_EQ(group.Run(AllGather(std::as_bytes(std::span(values)),
                                          std::as_writable_bytes(std::span(all)))),
                      absl::OkStatus());
            for (int rank = 0; rank < group.size(); ++rank) {
              const std::vector<float> theirs = Values(rank, values.size());
              ASSERT_TRUE(std::equal(theirs.begin(), theirs.end(), all.begin() + rank * values.size()))
                  << "operation " << i << " of seed " << seed;
            }
            break;
          }
          case 3:
            ASSERT_EQ(group.Run(Barrier()), absl::OkStatus());
        }
      }
    });
  }
}

TEST_P(CollectiveTest, TrafficMayBeReadWhileSomethingIsUnderWay) {  // says ThreadSanitizer
  OnAllRanks([&](Collective& group) {
    std::vector<float> values(200000);
    uint64_t before = 0;
    for (int i = 0; i < 10; ++i) {
      const Ticket ticket = group.Start(AllReduce(values, values));
      const uint64_t sent = group.traffic().sent_bytes;
      EXPECT_GE(sent, before);
      before = sent;
      ASSERT_EQ(group.Wait(ticket), absl::OkStatus());
    }
  });
}

TEST_P(CollectiveTest, AGroupThatWasAbortedDoesNothingMore) {
  OnAllRanks([&](Collective& group) {
    std::vector<float> values(10);
    ASSERT_EQ(group.Run(AllReduce(values, values)), absl::OkStatus());
    group.Abort(FailedPrecondition("enough"));
    const absl::Status status = group.Run(AllReduce(values, values));
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("enough"));
    EXPECT_EQ(group.Wait(group.Start(Barrier())), status);
  });
}

TEST_P(CollectiveTest, ARankThatGoesAwayFailsTheOthers) {
  if (size() == 1) GTEST_SKIP() << "there are no others";
  if (is_nccl()) GTEST_SKIP() << "by NCCL it is the group's interrupt that says so";
  OnAllRanks([&](Collective& group) {
    std::vector<float> values(100000);
    ASSERT_EQ(group.Run(AllReduce(values, values)), absl::OkStatus());
    if (group.rank() == size() - 1) return;  // and its end is destroyed
    // The others hear of it from each other, when they give up.
    const absl::Status status = group.Run(AllReduce(values, values));
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  });
}

TEST_P(CollectiveTest, AnAbortEndsWhatIsUnderWay) {
  if (size() == 1) GTEST_SKIP() << "there are no others to wait for";
  if (GetParam().backend == "gloo") GTEST_SKIP() << "Gloo goes on until its timeout";
  std::atomic<int> left = size() - 1;
  OnAllRanks([&](Collective& group) {
    std::vector<float> values(100000);
    if (group.rank() == 0) {  // takes no part
      while (left > 0) std::this_thread::yield();
      return;
    }
    const Ticket ticket = group.Start(AllReduce(values, values));
    std::jthread aborts([&] { group.Abort(Cancelled("enough")); });
    EXPECT_FALSE(group.Wait(ticket).ok());
    --left;
  });
}

TEST_P(CollectiveTest, WhoIsWaitedForInVainIsNamed) {
  if (size() == 1) GTEST_SKIP() << "there is nobody to wait for";
  if (GetParam().backend == "gloo") GTEST_SKIP() << "Gloo names nobody";
  std::atomic<int> left = size() - 1;
  OnAllRanks(
      [&](Collective& group) {
        const bool takes_part = group.rank() != 1;
        const absl::Cleanup leaves = [&] { left -= takes_part; };
        std::vector<float> values(10);
        ASSERT_EQ(group.Run(Barrier()), absl::OkStatus());
        if (!takes_part) {
          while (left > 0) std::this_thread::yield();
          return;
        }
        const absl::Status status = group.Run(AllReduce(values, values));
        EXPECT_FALSE(status.ok());
        if (size() == 2) {  // else it may be one of the others who gives up first
          EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
          EXPECT_THAT(std::string(status.message()), testing::ContainsRegex("(worker:|rank )1"));
        }
      },
      std::chrono::seconds(2));  // also for what is to succeed, at whose first use GPUs load code
}

std::vector<Case> Cases() {
#if defined(MUSTER_NCCL)
  return {{"nccl", 1}, {"nccl", 2}, {"nccl", 4}};  // the others are in a program without CUDA
#endif
  std::vector<Case> cases = {{"single_rank", 1}, {"tcp", 1}};
  for (const int size : {2, 3, 4, 5}) {
    for (const char* backend : {"in_process", "tcp", "shared_memory"}) cases.push_back({backend, size});
  }
  for (const int size : {2, 3}) cases.push_back({"tls", size});
  for (const int size : {3, 4}) cases.push_back({"mixed", size});
#if defined(MUSTER_GLOO)
  for (const int size : {2, 4}) cases.push_back({"gloo", size});
#endif
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Backends, CollectiveTest, testing::ValuesIn(Cases()), [](const auto& info) {
  return info.param.backend + "_" + std::to_string(info.param.size);
});

}  // namespace
}  // namespace muster
