// A parameter server, a real process, that anybody may talk to: what is no frame of the protocol is refused,
// costs no memory, and does nothing to those who train.
#include <absl/strings/str_join.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "ps/client.h"
#include "ps/job_config.h"
#include "ps/wire.h"
#include "tests/support/trainers_fixture.h"

namespace muster {
namespace {

constexpr int kWorkers = 2;
constexpr int kOfEachKind = 10'000;
constexpr int64_t kMiB = 1 << 20;

/// A stream to a method of the server, for bytes of any kind.
class RawStream {
 public:
  RawStream(const std::shared_ptr<grpc::Channel>& channel, const std::string& method, bool reads = true)
      : stub_(channel) {
    stream_ = stub_.PrepareCall(&context_, method, &queue_);
    stream_->StartCall(nullptr);
    Await();
    if (reads) stream_->Read(&answer_, &answer_);
  }

  ~RawStream() {
    context_.TryCancel();
    queue_.Shutdown();
    void* tag;
    bool ok;
    while (queue_.Next(&tag, &ok)) {
    }
  }

  /// False: the stream is over.
  bool Write(const std::string& bytes) {
    const grpc::Slice slice(bytes);
    stream_->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    return Await();
  }

  /// Until so many answers have come. False: they do not.
  bool AwaitAnswers(int count) {
    void* tag;
    bool ok;
    while (answers_ < count && Next(&tag, &ok)) {
      if (!ok) return false;
      TakeAnswer();
    }
    return answers_ >= count;
  }

  /// How it ends: the server is to end it.
  grpc::StatusCode End() {
    grpc::Status status;
    stream_->Finish(&status, &status);
    void* tag = nullptr;
    bool ok = false;
    while (tag != &status && Next(&tag, &ok)) {
    }
    return tag == &status ? status.error_code() : grpc::StatusCode::OK;
  }

 private:
  bool Next(void** tag, bool* ok) {
    const auto deadline = std::chrono::system_clock::now() + std::chrono::seconds(60);
    const bool has_come = queue_.AsyncNext(tag, ok, deadline) == grpc::CompletionQueue::GOT_EVENT;
    EXPECT_TRUE(has_come) << "the server does not answer";
    return has_come;
  }

  // Until the operation without a tag has ended.
  bool Await() {
    void* tag = &answer_;
    bool ok = false;
    while (tag != nullptr) {
      if (!Next(&tag, &ok)) return false;
      if (tag == &answer_ && ok) TakeAnswer();
    }
    return ok;
  }

  void TakeAnswer() {
    ++answers_;
    answer_.Clear();
    stream_->Read(&answer_, &answer_);
  }

  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  grpc::GenericStub stub_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  grpc::ByteBuffer answer_;
  int answers_ = 0;
};

class HostileClients : public Trainers {
 protected:
  HostileClients() {
    cluster_.workers.clear();
    for (int i = 0; i < kWorkers; ++i) cluster_.workers.push_back("127.0.0.2:" + std::to_string(1000 + i));
  }

  ps::JobConfig Config() const {
    const UpdateConfig update{.rule = {.mode = UpdateMode::kSync, .worker_count = kWorkers}};
    const std::vector<OptimizerConfig> sgd = {{.kind = OptimizerKind::kSgd, .learning_rate = 1}};
    return MakeJobConfig(layout_, {}, update, sgd, 1);
  }

  // A join of a worker that is not in the job, and what it would send then. However few bits are turned, none
  // of them is let in.
  std::vector<std::string> Frames() const {
    ps::ClientHeader join;
    join.set_version(kWireVersion);
    join.set_request(1);
    join.mutable_join()->set_rank(kWorkers + 5);
    join.mutable_join()->set_shard_count(7);
    join.mutable_join()->set_worker_uuid("0123456789");
    *join.mutable_join()->mutable_config() = Config();
    ps::ClientHeader push;
    push.set_version(kWireVersion);
    push.set_request(2);
    push.mutable_push()->set_sequence(1);
    push.mutable_push()->set_samples(1);
    push.mutable_push()->add_rows()->add_ids(3);
    ps::ClientHeader pull;
    pull.set_version(kWireVersion);
    pull.set_request(3);
    pull.mutable_pull()->set_parameters(true);
    const std::vector<float> gradient(layout_.size(), 1.0f);
    return {BytesOf(EncodeFrame(join)), BytesOf(EncodeFrame(push, {BorrowFloats(gradient)})),
            BytesOf(EncodeFrame(pull))};
  }

  // Over a stream for every hundred of them. What is no frame is answered, each with an error; what is one
  // may be what needs no answer.
  void SendAll(int count, bool each_is_answered, const std::function<std::string()>& make_frame) {
    constexpr int kOfAStream = 100;
    for (int sent = 0; sent < count && !HasFailure();) {
      RawStream stream(channel_, kExchangeMethod);
      int of_this = 0;
      while (of_this < kOfAStream && stream.Write(make_frame())) ++of_this;
      EXPECT_EQ(of_this, kOfAStream);
      EXPECT_TRUE(stream.AwaitAnswers(each_is_answered ? of_this : 1));
      sent += of_this;
    }
  }

  // What is refused is answered, and this client reads none of it.
  void SendWithoutReading() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);  // its window stays as small as it is at first
    RawStream stream(grpc::CreateCustomChannel(cluster_.ps[0], grpc::InsecureChannelCredentials(), arguments),
                     kExchangeMethod, /*reads=*/false);
    const std::string frame = Frames()[2];
    const TimePoint deadline = Now() + std::chrono::seconds(30);
    bool is_open = true;
    while (is_open && Now() < deadline) is_open = stream.Write(frame);
    EXPECT_FALSE(is_open) << "the server does not hang up";
  }

  void SendNonsense(int count) {
    const std::vector<std::string> frames = Frames();
    const auto any = [&] { return frames[random_.NextBelow(frames.size())]; };
    SendAll(count, /*each_is_answered=*/true, [&] {
      const std::string frame = any();
      return frame.substr(0, random_.NextBelow(frame.size()));
    });
    SendAll(count, /*each_is_answered=*/true, [&] {
      std::string noise(random_.NextBelow(300), '\0');
      for (char& byte : noise) byte = static_cast<char>(random_.NextBelow(256));
      return random_.NextBelow(2) == 0 ? noise : any().substr(0, 8) + noise;
    });
    SendAll(count, /*each_is_answered=*/false, [&] {
      std::string frame = any();
      for (uint64_t bits = 1 + random_.NextBelow(3); bits > 0; --bits) {
        frame[random_.NextBelow(frame.size())] ^= static_cast<char>(1 << random_.NextBelow(8));
      }
      return frame;
    });
    for (int i = 0; i < count && !HasFailure(); ++i) {
      const std::string method = "/no.such.Service/" + std::to_string(random_.NextBelow(1000));
      EXPECT_EQ(RawStream(channel_, method).End(), grpc::StatusCode::UNIMPLEMENTED);
    }
  }

  const ParameterLayout layout_ = *ParameterLayout::Create({{.name = "w", .shape = {128}}});
  ClusterSpec cluster_ = MakeCluster(1, 0);
  std::shared_ptr<grpc::Channel> channel_ =
      grpc::CreateChannel(cluster_.ps[0], grpc::InsecureChannelCredentials());
  RandomStream random_{1, 1};
};

TEST_F(HostileClients, NonsenseIsRefusedCostsNoMemoryAndHoldsUpNobody) {
  Started server = Start("ps", {"--job_name=ps", "--task_index=0", "--ps_hosts=" + cluster_.ps[0],
                                "--worker_hosts=" + absl::StrJoin(cluster_.workers, ",")});
  const RowIndex no_rows(std::span<const TableSpec>(), std::span<const int>(), 1);
  const std::vector<float> gradient(layout_.size(), -1.0f);
  std::vector<std::vector<float>> parameters(kWorkers, std::vector<float>(layout_.size()));
  std::vector<std::unique_ptr<ParameterServerClient>> workers;
  const auto for_all = [&](const std::function<absl::Status(int rank)>& act) {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kWorkers; ++rank) {
      threads.emplace_back([&, rank] {
        const absl::Status status = act(rank);
        EXPECT_TRUE(status.ok()) << status;
      });
    }
  };
  const auto push = [&](int rank) {
    return workers[rank]
        ->PushPull({.samples = 1, .gradient = gradient, .rows = no_rows}, parameters[rank], no_rows, {})
        .status();
  };
  for (int rank = 0; rank < kWorkers; ++rank) {
    workers.push_back(std::make_unique<ParameterServerClient>(ParameterServerClientOptions{
        .cluster = cluster_, .task = {Role::kWorker, rank}, .config = Config(), .layout = layout_}));
  }
  for_all([&](int rank) { return workers[rank]->Join(parameters[rank]).status(); });
  for_all(push);

  SendNonsense(kOfEachKind / 10);  // what gRPC and the allocator keep from then on
  const int64_t before = MemoryOf(server.process.pid(), "VmRSS:");
  SendNonsense(kOfEachKind);
  SendWithoutReading();
  const int64_t grown = MemoryOf(server.process.pid(), "VmRSS:") - before;
  RecordProperty("grown_kib", static_cast<int>(grown >> 10));
#ifndef __SANITIZE_ADDRESS__  // which keeps what is freed
  EXPECT_LT(grown, 4 * kMiB);
#endif

  for_all(push);
  for_all([&](int rank) { return workers[rank]->Finish(); });
  for (const auto& of_rank : parameters) EXPECT_EQ(of_rank, std::vector<float>(layout_.size(), 2.0f));
  EXPECT_EQ(ExitCode(std::move(server)), 0);
}

}  // namespace
}  // namespace muster
