#include "ps/encoding.h"

#include <absl/cleanup/cleanup.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/random.h"
#include "tests/support/ps_cluster.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

ps::JobConfig ConfigOf(const Compression& compression) {
  ps::JobConfig config;
  config.set_wire_type(compression.wire_type);
  config.set_top_k(compression.top_k);
  return config;
}

std::vector<float> RandomFloats(size_t size, RandomStream& random, float scale = 1) {
  std::vector<float> values(size);
  for (float& value : values) value = scale * static_cast<float>(random.NextDouble() - 0.5);
  return values;
}

FloatPayload PayloadOf(const EncodedFloats& encoded) { return FloatPayload(encoded.payload, 0); }

// What shards make of a gradient of `layout_size`, whose rows are the last one's.
std::vector<float> SendToShards(GradientEncoder& encoder, std::span<const float> gradient,
                                int64_t layout_size, int shards) {
  encoder.Begin(gradient);
  std::vector<float> received;
  for (int i = 0; i < shards; ++i) {
    const LayoutRange range{layout_size * i / shards, layout_size * (i + 1) / shards};
    const auto rows = i + 1 == shards ? gradient.subspan(layout_size) : std::span<const float>();
    const EncodedFloats encoded = encoder.Encode(range, rows);
    const auto decoded = DecodeGradient(encoded.encoding, PayloadOf(encoded), range.size());
    EXPECT_TRUE(decoded.ok()) << decoded.status();
    std::vector<float> part(range.size() + rows.size());
    decoded->CopyTo(part);
    received.insert(received.end(), part.begin(), part.end());
  }
  return received;
}

TEST(GradientEncoder, AGradientIsWhatItWasButForTheBitsThatATypeDoesNotHave) {
  RandomStream random(1);
  for (const auto& [type, bits] : {std::pair{ps::FLOAT32, 24}, {ps::FLOAT16, 11}, {ps::BFLOAT16, 8}}) {
    // Far outside of float16's range, too.
    for (const float scale : {1e-30f, 1.0f, 3e38f}) {
      GradientEncoder encoder(ConfigOf({.wire_type = type}), 100);
      EXPECT_EQ(encoder.is_identity(), type == ps::FLOAT32);
      const std::vector<float> gradient = RandomFloats(120, random, scale);
      const std::vector<float> received = SendToShards(encoder, gradient, 100, 1);
      for (size_t i = 0; i < gradient.size(); ++i) {
        const float tolerance = std::ldexp(std::max(std::abs(gradient[i]), 1e-4f * scale), -bits);
        ASSERT_NEAR(received[i], gradient[i], type == ps::FLOAT32 ? 0 : tolerance) << i;
      }
    }
  }
}

TEST(GradientEncoder, WhatIsNotFiniteArrivesAsSuch) {
  for (const ps::WireType type : {ps::FLOAT16, ps::BFLOAT16}) {
    for (const double top_k : {0.0, 0.1}) {
      for (const float bad : {NAN, INFINITY}) {
        GradientEncoder encoder(ConfigOf({.wire_type = type, .top_k = top_k}), 20);
        std::vector<float> gradient(20, 1.0f);
        gradient[13] = bad;
        EXPECT_FALSE(std::isfinite(SendToShards(encoder, gradient, 20, 2)[13]));
      }
    }
  }
}

TEST(GradientEncoder, HowManyShardsThereAreChangesNothing) {
  for (const Compression& compression :
       {Compression{.wire_type = ps::FLOAT16}, Compression{.wire_type = ps::BFLOAT16, .top_k = 0.07},
        Compression{.top_k = 0.2}}) {
    RandomStream random(2);
    GradientEncoder one(ConfigOf(compression), 97), three(ConfigOf(compression), 97);
    for (int step = 0; step < 20; ++step) {
      const std::vector<float> gradient = RandomFloats(110, random, std::ldexp(1.0f, step));
      ASSERT_EQ(SendToShards(one, gradient, 97, 1), SendToShards(three, gradient, 97, 3));
    }
  }
}

TEST(GradientEncoder, TheLargestAreSentAndTheOthersLater) {
  GradientEncoder encoder(ConfigOf({.top_k = 0.2}), 10);
  std::vector<float> gradient(10);
  std::iota(gradient.begin(), gradient.end(), 1.0f);
  const std::vector<float> zeros(10, 0.0f);
  for (int last = 9; last >= 0; last -= 2) {
    std::vector<float> expected(10, 0.0f);
    expected[last] = static_cast<float>(last + 1);
    expected[last - 1] = static_cast<float>(last);
    ASSERT_EQ(SendToShards(encoder, last == 9 ? gradient : zeros, 10, 1), expected);
  }
  ASSERT_EQ(SendToShards(encoder, zeros, 10, 1), zeros);
  SendToShards(encoder, gradient, 10, 1);
  encoder.Reset();
  ASSERT_EQ(SendToShards(encoder, zeros, 10, 1), zeros);
}

// Sums of floats are exact here: they are small multiples of one power of two.
TEST(GradientEncoder, NothingIsEverLost) {
  for (const ps::WireType type : {ps::FLOAT32, ps::FLOAT16, ps::BFLOAT16}) {
    RandomStream random(3);
    constexpr int64_t kSize = 64;
    GradientEncoder encoder(ConfigOf({.wire_type = type, .top_k = 0.05}), kSize);
    std::vector<float> computed(kSize), received(kSize);
    for (int step = 0; step < 300; ++step) {
      std::vector<float> gradient(kSize, 0.0f);
      for (float& g : gradient) {
        if (step < 100) g = static_cast<float>(random.NextBelow(4001)) - 2000;
      }
      const std::vector<float> sent = SendToShards(encoder, gradient, kSize, 2);
      for (int64_t i = 0; i < kSize; ++i) computed[i] += gradient[i], received[i] += sent[i];
      ASSERT_TRUE(step > 99 || received != computed);
    }
    EXPECT_EQ(received, computed) << type;
  }
}

TEST(ParameterEncoder, WhoeverGetsWhatHasChangedHasWhatAllWouldHaveBeen) {
  for (const ps::WireType type : {ps::FLOAT32, ps::FLOAT16, ps::BFLOAT16}) {
    RandomStream random(5);
    constexpr uint64_t kFirst = 1000;
    constexpr int64_t kSize = 300;
    ParameterEncoder encoder({.wire_type = type, .top_k = 0.01}, kSize, kFirst);
    std::vector<float> parameters = RandomFloats(kSize, random);
    // Three receivers, that ask now and then.
    std::vector<std::vector<float>> held(3, std::vector<float>(kSize));
    std::vector<std::optional<uint64_t>> versions(3);
    int sparse = 0;
    for (uint64_t step = kFirst; step < kFirst + 300; ++step) {
      for (size_t r = 0; r < held.size(); ++r) {
        if (random.NextBelow(r + 1) > 0) continue;
        const EncodedFloats encoded =
            encoder.Encode(std::make_shared<std::vector<float>>(parameters), versions[r]);
        sparse += encoded.encoding.sparse();
        ASSERT_TRUE(DecodeFloats(encoded.encoding, PayloadOf(encoded), held[r], {}).ok());
        versions[r] = step;
        const EncodedFloats all =
            encoder.Encode(std::make_shared<std::vector<float>>(parameters), std::nullopt);
        ASSERT_FALSE(all.encoding.sparse());
        std::vector<float> expected(kSize);
        ASSERT_TRUE(DecodeFloats(all.encoding, PayloadOf(all), expected, {}).ok());
        ASSERT_EQ(held[r], expected) << step;
      }
      const std::vector<float> before = parameters;
      const uint64_t changes = step % 50 == 49 ? kSize : random.NextBelow(6);
      for (uint64_t i = 0; i < changes; ++i) {
        parameters[random.NextBelow(kSize)] = static_cast<float>(random.NextDouble());
      }
      encoder.OnUpdate(before, parameters);
    }
    EXPECT_GT(sparse, 300);
  }
}

TEST(ParameterEncoder, AllAreSentWhereNothingIsKnownOfWhatHasChanged) {
  const auto parameters = std::make_shared<std::vector<float>>(100, 1.0f);
  ParameterEncoder encoder({.top_k = 0.01}, 100, 7);
  encoder.OnUpdate(*parameters, *parameters);
  EXPECT_TRUE(encoder.Encode(parameters, 7).encoding.sparse());
  EXPECT_TRUE(encoder.Encode(parameters, 8).encoding.sparse());
  EXPECT_FALSE(encoder.Encode(parameters, 6).encoding.sparse());  // before this server knew anything
  EXPECT_FALSE(encoder.Encode(parameters, 9).encoding.sparse());  // of a time to come
  EXPECT_FALSE(encoder.Encode(parameters, std::nullopt).encoding.sparse());
  EXPECT_FALSE(ParameterEncoder({}, 100, 7).Encode(parameters, 7).encoding.sparse());
}

TEST(Encoding, RefusesWhatItCannotBeAndWritesNothing) {
  const auto bytes_of = [](size_t size) { return FloatPayload({grpc::Slice(std::string(size, '\1'))}, 0); };
  const auto error = [&](const ps::Encoding& encoding, size_t bytes) {
    const std::vector<float> before(10, 5.0f);
    std::vector<float> dense = before, rows(2, 5.0f);
    const absl::Status status = DecodeFloats(encoding, bytes_of(bytes), dense, rows);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(dense, before);
    EXPECT_EQ(rows, std::vector<float>(2, 5.0f));
    return std::string(status.message());
  };
  ps::Encoding encoding;
  EXPECT_THAT(error(encoding, 47), HasSubstr("47 bytes"));
  EXPECT_THAT(error(encoding, 39), HasSubstr("39 bytes"));
  EXPECT_THAT(error(encoding, 36), HasSubstr("36 bytes for 10 numbers"));
  EXPECT_THAT(error(encoding, 52), HasSubstr("3 numbers for rows of 2"));
  encoding.set_type(ps::FLOAT16);
  encoding.set_exponent(121);
  EXPECT_THAT(error(encoding, 48), HasSubstr("a form that this version does not know"));
  encoding.set_exponent(std::numeric_limits<int32_t>::min());
  EXPECT_THAT(error(encoding, 48), HasSubstr("a form that this version does not know"));
  encoding.set_exponent(5);
  encoding.set_type(ps::FLOAT32);
  EXPECT_THAT(error(encoding, 48), HasSubstr("a form that this version does not know"));
  encoding.set_exponent(0);
  encoding.add_gaps(0);
  EXPECT_THAT(error(encoding, 48), HasSubstr("a form that this version does not know"));
  encoding.clear_gaps();
  encoding.set_type(static_cast<ps::WireType>(3));
  EXPECT_THAT(error(encoding, 48), HasSubstr("a form that this version does not know"));
  encoding.set_type(ps::BFLOAT16);
  EXPECT_THAT(error(encoding, 25), HasSubstr("25 bytes"));
  encoding.set_sparse(true);
  EXPECT_THAT(error(encoding, 6), HasSubstr("3 numbers for rows of 2"));
  encoding.add_gaps(9);
  EXPECT_THAT(error(encoding, 4), HasSubstr("1 numbers for rows of 2"));
  encoding.add_gaps(0);
  EXPECT_THAT(error(encoding, 8), HasSubstr("beyond the 10 of a shard"));
  encoding.set_gaps(0, 0xffffffffu);
  encoding.set_gaps(1, 0xffffffffu);
  EXPECT_THAT(error(encoding, 8), HasSubstr("beyond the 10 of a shard"));
  EXPECT_FALSE(DecodeGradient(encoding, bytes_of(8), 10).ok());
}

UpdateConfig Compressed(UpdateMode mode, ps::WireType type, double top_k) {
  return {.rule = {.mode = mode, .staleness = mode == UpdateMode::kBounded ? 2u : 0u},
          .compression = {.wire_type = type, .top_k = top_k}};
}

// Those of a worker that has just joined: all of them, as they travel.
std::vector<float> ParametersOfAJoin(const Cluster& cluster, int rank) {
  std::vector<float> parameters(cluster.layout.size());
  ParameterServerClient client(cluster.ClientOptions(rank));
  EXPECT_TRUE(client.Join(parameters).ok());
  return parameters;
}

TEST(CompressedExchange, AWorkerThatGetsWhatHasChangedHasWhatOneThatJoinsGets) {
  for (const ps::WireType type : {ps::FLOAT32, ps::FLOAT16, ps::BFLOAT16}) {
    Cluster cluster(2, 2, Compressed(UpdateMode::kAsync, type, 0.05), kPlainSgd);
    std::vector<float> parameters(cluster.layout.size());
    ParameterServerClient client(cluster.ClientOptions(0));
    ASSERT_TRUE(client.Join(parameters).ok());
    uint64_t all = client.bytes_pulled();
    for (uint64_t step = 0; step < 20; ++step) {
      const uint64_t before = client.bytes_pulled();
      ASSERT_TRUE(Push(client, GradientOf(cluster.layout, step, 0), parameters).ok());
      EXPECT_LT(client.bytes_pulled() - before, all / 2);
      ASSERT_EQ(parameters, ParametersOfAJoin(cluster, 1)) << step;
    }
    // Rounded on the way, and then as the servers have them.
    const std::vector<float> rounded = parameters;
    auto finished = std::async(std::launch::async, [&] { return TrainRank(cluster, 1, 0).status(); });
    ASSERT_TRUE(client.AwaitOthers(parameters).ok());
    EXPECT_EQ(parameters == rounded, type == ps::FLOAT32);
    const int bits = type == ps::FLOAT16 ? 11 : 8;
    for (size_t i = 0; i < parameters.size(); ++i) {
      ASSERT_NEAR(parameters[i], rounded[i], std::ldexp(std::abs(parameters[i]), -bits) + 1e-7);
    }
    ASSERT_TRUE(client.Finish().ok());
    EXPECT_TRUE(finished.get().ok());
  }
}

TEST(CompressedExchange, GradientsThatWereLeftOutArriveLater) {
  Cluster cluster(2, 1, Compressed(UpdateMode::kSync, ps::FLOAT32, 0.05), kPlainSgd);
  std::vector<float> parameters(cluster.layout.size());
  std::vector<float> ones(cluster.layout.size(), -1.0f), none(cluster.layout.size(), 0.0f);
  ParameterServerClient client(cluster.ClientOptions(0));
  ASSERT_TRUE(client.Join(parameters).ok());
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(Push(client, ones, parameters).ok());
  EXPECT_NE(BiasesOf(cluster.layout, parameters), std::vector<float>(5, 10.0f));
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Push(client, none, parameters).ok());
  EXPECT_EQ(BiasesOf(cluster.layout, parameters), std::vector<float>(5, 10.0f));
}

// They are those of an update that may have been undone.
TEST(CompressedExchange, WhatWasLeftOutBeforeAJoinNeverArrives) {
  Cluster cluster(1, 1, Compressed(UpdateMode::kSync, ps::FLOAT32, 0.05), kPlainSgd);
  std::vector<float> parameters(cluster.layout.size());
  const std::vector<float> ones(cluster.layout.size(), -1.0f), none(cluster.layout.size(), 0.0f);
  ParameterServerClient client(cluster.ClientOptions(0));
  ASSERT_TRUE(client.Join(parameters).ok());
  ASSERT_TRUE(Push(client, ones, parameters).ok());
  ASSERT_TRUE(client.Join(parameters).ok());
  const std::vector<float> joined = parameters;
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(Push(client, none, parameters).ok());
  EXPECT_EQ(parameters, joined);
}

TEST(CompressedExchange, GradientsThatAreNotFiniteOrWithoutAJoinAreRefused) {
  for (const double top_k : {0.0, 0.05}) {
    Cluster cluster(1, 1, Compressed(UpdateMode::kAsync, ps::BFLOAT16, top_k), kPlainSgd);
    const std::vector<float> before = ParametersOfAJoin(cluster, 0);
    std::vector<float> gradient(cluster.layout.size(), 1.0f), parameters = before;
    gradient[7] = NAN;
    ParameterServerClient client(cluster.ClientOptions(0));
    ASSERT_TRUE(client.Join(parameters).ok());
    EXPECT_THAT(std::string(Push(client, gradient, parameters).status().message()), HasSubstr("not finite"));
    auto stranger = ShardConnection::Connect(cluster.spec.ps[0], {Role::kPs, 0}, std::nullopt,
                                             Transport::kTcp, Now() + std::chrono::seconds(20));
    ASSERT_TRUE(stranger.ok());
    ps::ClientHeader push;
    push.set_version(kWireVersion);
    push.mutable_push();
    push.mutable_encoding()->set_sparse(true);
    (*stranger)->Send(push, {});
    EXPECT_THAT((*stranger)->Receive(Now() + std::chrono::seconds(20))->header.error().message(),
                HasSubstr("the first frame is no join"));
    EXPECT_EQ(ParametersOfAJoin(cluster, 0), before);
  }
}

// A pull that a worker sends when it has to catch up brings all, and one after the end the floats themselves.
TEST(CompressedExchange, PullsBringAllParameters) {
  Cluster cluster(1, 1, Compressed(UpdateMode::kAsync, ps::BFLOAT16, 0.05), kPlainSgd);
  const int64_t size = cluster.layout.size();
  RawWorker worker(cluster, "process", 1);
  ASSERT_TRUE(worker.Receive().has_join());
  std::vector<float> gradient(size, 0.0f);
  gradient[3] = gradient[100] = 1 / 3.0f;
  worker.Push(1, 0, gradient);
  const ps::ServerHeader answer = worker.Receive();
  ASSERT_EQ(answer.push().step(), 1u);
  EXPECT_EQ(answer.encoding().gaps_size(), 2);
  const auto pull = [&](bool exact) {
    std::vector<float> parameters(size);
    ps::ClientHeader header = worker.Header();
    header.mutable_pull()->set_parameters(true);
    header.mutable_pull()->set_exact(exact);
    worker.connection->Send(header, {});
    const auto reply = worker.connection->Receive(Now() + std::chrono::seconds(20));
    EXPECT_TRUE(reply.ok() && reply->header.pull().step() == 1) << reply.status();
    if (!reply.ok()) return parameters;
    EXPECT_FALSE(reply->header.encoding().sparse());
    EXPECT_EQ(reply->header.encoding().type(), exact ? ps::FLOAT32 : ps::BFLOAT16);
    EXPECT_TRUE(DecodeFloats(reply->header.encoding(), reply->payload, parameters, {}).ok());
    return parameters;
  };
  const std::vector<float> rounded = pull(false), exact = pull(true);
  EXPECT_NE(rounded, exact);
  for (int64_t i = 0; i < size; ++i) {
    EXPECT_NEAR(rounded[i], exact[i], std::ldexp(std::abs(exact[i]), -8));
  }
}

// Every worker is ahead of the others now and then, and gets answers of steps that are yet to be made.
TEST(CompressedExchange, AheadOfTheOthersAWorkerHasWhatTheServersHave) {
  UpdateConfig update = Compressed(UpdateMode::kBounded, ps::FLOAT32, 0.05);
  update.rule.staleness = 2;
  Cluster cluster(2, 2, update, kPlainSgd);
  std::vector<std::vector<float>> last(2, std::vector<float>(cluster.layout.size()));
  std::vector<std::vector<float>> final = last;
  {
    std::vector<std::jthread> workers;
    for (const int rank : {0, 1}) {
      workers.emplace_back([&, rank] {
        ParameterServerClient client(cluster.ClientOptions(rank));
        ASSERT_TRUE(client.Join(last[rank]).ok());
        const std::vector<float> none(cluster.layout.size(), 0.0f);
        for (uint64_t step = 0; step < 60; ++step) {
          if (step % 7 == static_cast<uint64_t>(3 * rank))
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
          const auto pushed =
              Push(client, step < 35 ? GradientOf(cluster.layout, step, rank) : none, last[rank]);
          ASSERT_TRUE(pushed.ok()) << pushed.status();
        }
        ASSERT_TRUE(rank != 0 || client.AwaitOthers(final[rank]).ok());
        ASSERT_TRUE(client.Finish().ok());
      });
    }
  }
  // All that was computed has arrived long before the last step.
  EXPECT_EQ(last[0], final[0]);
  EXPECT_EQ(last[1], final[0]);
}

// Rows travel in 16 bits as well, and gradients depend on them.
TEST(CompressedExchange, TheResultDoesNotDependOnTheNumberOfShards) {
  for (const Compression& compression :
       {Compression{.wire_type = ps::FLOAT16}, Compression{.wire_type = ps::BFLOAT16},
        Compression{.wire_type = ps::BFLOAT16, .top_k = 0.1}, Compression{.top_k = 0.1}}) {
    for (const UpdateMode mode : {UpdateMode::kSync, UpdateMode::kBounded}) {
      if (mode == UpdateMode::kBounded && compression.top_k == 0) continue;
      std::vector<std::vector<float>> results;
      for (const int shards : {1, 3}) {
        UpdateConfig update = Compressed(mode, compression.wire_type, compression.top_k);
        update.rule.staleness = 0;
        Cluster cluster(shards, 3, update);
        results.push_back(TrainAll(cluster, 15));
      }
      EXPECT_EQ(results[0], results[1]);
      Cluster whole(2, 3, UpdateMode::kSync);
      EXPECT_NE(results[0], TrainAll(whole, 15));
    }
  }
}

// Workers have no state but what top_k leaves out: whoever is replaced gets the same parameters again. With
// top_k that is so where nobody goes back.
TEST(CompressedExchange, AServerThatIsReplacedEndsWithTheSameBits) {
  for (const auto& [top_k, journal] : {std::pair{0.0, false}, {0.0, true}, {0.1, true}, {0.1, false}}) {
    const UpdateConfig update = Compressed(UpdateMode::kSync, ps::BFLOAT16, top_k);
    Cluster undisturbed(2, 2, update);
    const std::vector<float> expected = TrainAll(undisturbed, 30);
    Cluster cluster(2, 2, update);
    cluster.keeps_journal = journal;
    cluster.KeepCheckpoints(5);
    const std::vector<float> result = TrainWithFault(cluster, 30, 12, [&] { cluster.StartServer(1); });
    EXPECT_TRUE(result == expected || (top_k > 0 && !journal && !result.empty()));
  }
}

// Parameters that come as what has changed go wrong for good if one change is missed.
TEST(CompressedExchange, NothingIsLostOverABadNetworkWithServersThatAreReplaced) {
  for (const bool replicated : {false, true}) {
    Cluster cluster(2, 1, Compressed(UpdateMode::kAsync, ps::FLOAT32, 0.05), kPlainSgd);
    ShardConnection::InjectFaults(FrameFaultOptions{
        .lost = 0.03, .doubled = 0.1, .late = 0.1, .latest = std::chrono::milliseconds(20), .seed = 5});
    const absl::Cleanup heal = [] { ShardConnection::InjectFaults(std::nullopt); };
    if (replicated) {
      cluster.Replicate();
    } else {
      cluster.keeps_journal = true;
      cluster.KeepCheckpoints(30);
    }
    std::vector<float> parameters(cluster.layout.size());
    const std::vector<float> ones(cluster.layout.size(), -1.0f), none(cluster.layout.size(), 0.0f);
    ParameterServerClient client(cluster.ClientOptions(0));
    ASSERT_TRUE(client.Join(parameters).ok());
    for (int i = 0; i < 80; ++i) {
      if (i == 20 || i == 45) {
        ASSERT_TRUE(!replicated || cluster.AwaitBackups());
        cluster.StartServer(i % 2);
      }
      const auto pushed = Push(client, i < 60 ? ones : none, parameters);
      ASSERT_TRUE(pushed.ok()) << i << ": " << pushed.status();
    }
    EXPECT_EQ(BiasesOf(cluster.layout, parameters), std::vector<float>(5, 60.0f));
    std::vector<float> last(cluster.layout.size());
    ASSERT_TRUE(client.AwaitOthers(last).ok());
    EXPECT_EQ(parameters, last);
  }
}

TEST(CompressedExchange, WorkersWhoseFloatsTravelOtherwiseAreRefused) {
  Cluster cluster(1, 2, Compressed(UpdateMode::kSync, ps::BFLOAT16, 0));
  std::vector<float> parameters(cluster.layout.size());
  ParameterServerClient first(cluster.ClientOptions(0));
  ASSERT_TRUE(first.Join(parameters).ok());
  auto options = cluster.ClientOptions(1);
  options.config.set_wire_type(ps::FLOAT16);
  EXPECT_THAT(std::string(ParameterServerClient(options).Join(parameters).status().message()),
              HasSubstr("wire_type"));
}

}  // namespace
}  // namespace muster
