// Speed of a parameter server beside what it is made of: a fused push and pull, a bare gRPC echo and a raw
// TCP echo of as many bytes, each through a process of its own on this machine, in turn.

#include <arpa/inet.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "base/allocator.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/logging.h"
#include "base/status.h"
#include "ps/client.h"
#include "ps/job_config.h"
#include "ps/server.h"
#include "ps/shard_checkpoint.h"

namespace muster {
namespace {

constexpr char kHelp[] =
    R"(Times messages to a parameter server and back, beside the same bytes through a bare gRPC stream and through TCP.

push_pull: one worker, one server, asynchronous SGD; a gradient goes up and the updated parameters come down.
grpc_echo: a bidirectional stream of ByteBuffers that comes back after every byte was read once.
tcp_echo:  a blocking socket; every byte comes back. GB/s counts the bytes of a message once for both ways.
checkpoint: a shard with a table of rows that have all been updated: how long updates wait for the copy, and how
           long it takes in the background to write, checksum and sync the file.)";

constexpr const char* kMethod = "/bench.Echo/Exchange";

/// Another process, which ends with this object or with this process.
class Child {
 public:
  explicit Child(const std::function<void()>& run) : pid_(::fork()) {
    MUSTER_CHECK(pid_ >= 0);
    if (pid_ > 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    run();
    ::_exit(1);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { ::kill(pid_, SIGKILL); }

 private:
  const pid_t pid_;
};

// A socket that listens on loopback, and its port.
std::pair<int, uint16_t> ListenOnLoopback() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof address;
  MUSTER_CHECK(::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 && ::listen(fd, 1) == 0);
  MUSTER_CHECK(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  return {fd, ntohs(address.sin_port)};
}

std::string FreeLoopbackAddress() {
  const auto [fd, port] = ListenOnLoopback();
  ::close(fd);
  return absl::StrFormat("127.0.0.1:%d", port);
}

void SetNoDelay(int fd) {
  const int on = 1;
  MUSTER_CHECK(::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
}

// False at the end of the stream.
bool ReadAll(int fd, char* bytes, size_t count) {
  while (count > 0) {
    const ssize_t got = ::recv(fd, bytes, count, 0);
    if (got <= 0) return false;
    bytes += got;
    count -= static_cast<size_t>(got);
  }
  return true;
}

void WriteAll(int fd, const char* bytes, size_t count) {
  while (count > 0) {
    const ssize_t put = ::send(fd, bytes, count, MSG_NOSIGNAL);
    MUSTER_CHECK(put > 0);
    bytes += put;
    count -= static_cast<size_t>(put);
  }
}

// Of each connection: messages whose size their first 8 bytes say.
void ServeTcpEcho(int listening) {
  for (int fd; (fd = ::accept(listening, nullptr, nullptr)) >= 0; ::close(fd)) {
    SetNoDelay(fd);
    std::vector<char> message(8);
    while (ReadAll(fd, message.data(), 8)) {
      uint64_t size;
      std::memcpy(&size, message.data(), sizeof size);
      message.resize(std::max<uint64_t>(8, size));
      if (!ReadAll(fd, message.data() + 8, size - 8)) break;
      WriteAll(fd, message.data(), size);
    }
  }
}

uint64_t SumOfBytes(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  MUSTER_CHECK(buffer.Dump(&slices).ok());
  uint64_t sum = 0;
  for (const grpc::Slice& slice : slices) sum = std::accumulate(slice.begin(), slice.end(), sum);
  return sum;
}

// One stream at a time, by a completion queue: the least that gRPC can do.
void ServeGrpcEcho(const std::string& address) {
  grpc::AsyncGenericService service;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials());
  builder.RegisterAsyncGenericService(&service);
  builder.SetMaxReceiveMessageSize(-1);
  const auto queue = builder.AddCompletionQueue();
  const auto server = builder.BuildAndStart();
  MUSTER_CHECK(server != nullptr);
  while (true) {
    grpc::GenericServerContext context;
    grpc::GenericServerAsyncReaderWriter stream(&context);
    const auto await = [&] {
      void* tag;
      bool ok = false;
      return queue->Next(&tag, &ok) && ok;
    };
    service.RequestCall(&context, &stream, queue.get(), queue.get(), nullptr);
    if (!await()) return;
    static volatile uint64_t sink = 0;  // so that the bytes are read
    while (true) {
      grpc::ByteBuffer message;
      stream.Read(&message, nullptr);
      if (!await()) break;
      sink = sink + SumOfBytes(message);
      stream.Write(message, nullptr);
      if (!await()) break;
    }
    stream.Finish(grpc::Status::OK, nullptr);
    await();
  }
}

/// Something that sends a message and waits until one comes back.
class Exchanger {
 public:
  virtual ~Exchanger() = default;
  virtual void Exchange() = 0;
};

class TcpEcho final : public Exchanger {
 public:
  TcpEcho(uint16_t port, size_t bytes)
      : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), message_(bytes) {
    sockaddr_in address{
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    MUSTER_CHECK(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
    SetNoDelay(fd_);
    const uint64_t size = bytes;
    std::memcpy(message_.data(), &size, sizeof size);
    answer_.resize(bytes);
  }
  ~TcpEcho() override { ::close(fd_); }
  void Exchange() override {
    // What is being echoed has to be read while the rest is sent, or both ends would wait for each other.
    constexpr size_t kPart = 64 << 10;
    size_t received = 0;
    for (size_t sent = 0; sent < message_.size(); sent += kPart) {
      WriteAll(fd_, message_.data() + sent, std::min(kPart, message_.size() - sent));
      ssize_t got;
      while (received < answer_.size() &&
             (got = ::recv(fd_, answer_.data() + received, answer_.size() - received, MSG_DONTWAIT)) > 0) {
        received += static_cast<size_t>(got);
      }
    }
    MUSTER_CHECK(ReadAll(fd_, answer_.data() + received, answer_.size() - received));
  }

 private:
  const int fd_;
  std::vector<char> message_;
  std::vector<char> answer_;
};

class GrpcEcho final : public Exchanger {
 public:
  GrpcEcho(const std::string& address, size_t bytes) : values_(bytes) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    stub_ = std::make_unique<grpc::GenericStub>(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
    context_.set_wait_for_ready(true);
    stream_ = stub_->PrepareCall(&context_, kMethod, &queue_);
    stream_->StartCall(nullptr);
    Await();
  }
  ~GrpcEcho() override {
    context_.TryCancel();
    grpc::Status status;
    stream_->Finish(&status, nullptr);
    void* tag;
    bool ok;
    queue_.Next(&tag, &ok);
  }
  void Exchange() override {
    const grpc::Slice slice(values_.data(), values_.size(), grpc::Slice::STATIC_SLICE);
    stream_->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    Await();
    grpc::ByteBuffer answer;
    stream_->Read(&answer, nullptr);
    Await();
    sum_ += SumOfBytes(answer);
  }

 private:
  void Await() {
    void* tag;
    bool ok = false;
    MUSTER_CHECK(queue_.Next(&tag, &ok) && ok);
  }

  std::vector<char> values_;
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericStub> stub_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  uint64_t sum_ = 0;
};

class PushPull final : public Exchanger {
 public:
  PushPull(const ClusterSpec& cluster, size_t bytes) {
    const auto floats = static_cast<int64_t>(bytes / sizeof(float));
    auto layout = ParameterLayout::Create({{.name = "w", .shape = {floats}}});
    MUSTER_CHECK(layout.ok());
    const std::vector<OptimizerConfig> optimizers = {{.kind = OptimizerKind::kSgd, .learning_rate = 0.1f}};
    client_ = std::make_unique<ParameterServerClient>(ParameterServerClientOptions{
        .cluster = cluster,
        .task = {Role::kWorker, 0},
        .config =
            MakeJobConfig(*layout, {}, {.rule = {.mode = UpdateMode::kAsync, .worker_count = 1}}, optimizers,
                          /*seed=*/1),
        .layout = *layout});
    parameters_.resize(layout->size());
    gradient_.assign(layout->size(), 0.5f);
    const auto joined = client_->Join(parameters_);
    MUSTER_CHECK(joined.ok(), std::string(joined.status().message()).c_str());
  }
  void Exchange() override {
    const auto result =
        client_->PushPull({.samples = 1, .gradient = gradient_, .rows = no_rows_}, parameters_, no_rows_, {});
    MUSTER_CHECK(result.ok(), std::string(result.status().message()).c_str());
  }

 private:
  std::unique_ptr<ParameterServerClient> client_;
  std::vector<float> parameters_, gradient_;
  const RowIndex no_rows_{{}, {}, 0};
};

struct Figures {
  std::vector<double> p50_us;  // of each round
  std::vector<double> gigabytes;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Measure(Exchanger& exchanger, size_t bytes, double seconds, Figures* figures) {
  for (int i = 0; i < 10; ++i) exchanger.Exchange();
  std::vector<double> microseconds;
  const TimePoint start = Now();
  TimePoint last = start;
  while (ToSeconds(last - start) < seconds) {
    exchanger.Exchange();
    const TimePoint now = Now();
    microseconds.push_back(ToSeconds(now - last) * 1e6);
    last = now;
  }
  figures->gigabytes.push_back(static_cast<double>(bytes * microseconds.size()) / ToSeconds(last - start) /
                               1e9);
  figures->p50_us.push_back(Median(std::move(microseconds)));
}

// How long updates wait for the copy of a shard with so many rows, and how long its file then takes.
nlohmann::ordered_json MeasureCheckpoint(int64_t rows, int rounds) {
  constexpr int64_t kWidth = 8, kRowsOfAPush = 100'000;
  const auto layout = ParameterLayout::Create({{.name = "w", .shape = {64}}});
  MUSTER_CHECK(layout.ok());
  const std::vector<TableSpec> tables = {{.name = "table", .rows = rows, .width = kWidth}};
  const std::vector<OptimizerConfig> optimizers = {
      {.kind = OptimizerKind::kAdagrad, .learning_rate = 0.1f, .initial_accumulator = 0.1f}};
  const ShardPlace place{.config =
                             MakeJobConfig(*layout, tables, {.rule = {.worker_count = 1}}, optimizers, 1)};
  auto shard = Shard::Create(place.config, 0, 1);
  MUSTER_CHECK(shard.ok(), std::string(shard.status().message()).c_str());
  for (int64_t begin = 0; begin < rows; begin += kRowsOfAPush) {
    ShardGradient gradient;
    ps::Rows* ids = gradient.rows.Add();
    for (int64_t id = begin; id < std::min(rows, begin + kRowsOfAPush); ++id) ids->add_ids(id);
    const size_t floats = layout->size() + ids->ids_size() * kWidth;
    gradient.values = FloatPayload({ShareFloats(std::make_shared<std::vector<float>>(floats, 0.5f))}, 0);
    const ShardGradient* const one[] = {&gradient};
    shard->Apply(one, 1, 1);
  }
  const TemporaryDirectory folder;
  const CheckpointStore store(folder.path());
  std::vector<double> copy_ms, write_ms;
  uint64_t bytes = 0;
  for (int round = 0; round < rounds; ++round) {
    const TimePoint start = Now();
    const ShardSnapshot snapshot = shard->Snapshot();
    const TimePoint copied = Now();
    const auto file = WriteShardCheckpoint(store, round + 1, place, snapshot, {});
    MUSTER_CHECK(file.ok(), std::string(file.status().message()).c_str());
    copy_ms.push_back(ToSeconds(copied - start) * 1e3);
    write_ms.push_back(ToSeconds(Now() - copied) * 1e3);
    bytes = file->bytes();
  }
  return {{"rows", rows}, {"bytes", bytes}, {"copy_ms", Median(copy_ms)}, {"write_ms", Median(write_ms)}};
}

int Main(int argc, char** argv) {
  CLI::App app(kHelp, "ps_bench");
  double seconds = 0.3;
  int rounds = 5;
  bool json = false, plain_malloc = false;
  int64_t rows = 1'000'000;
  std::vector<size_t> sizes = {4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20};
  app.add_option("--seconds", seconds, "Of each measurement")->capture_default_str();
  app.add_option("--rounds", rounds, "Of all in turn; medians are printed")->capture_default_str();
  app.add_option("--bytes", sizes, "Of a message, each a multiple of 64")->capture_default_str();
  app.add_option("--rows", rows, "Of the shard whose checkpoint is written; 0: none")->capture_default_str();
  app.add_flag("--plain_malloc", plain_malloc, "Without what the trainer asks of the allocator");
  app.add_flag("--json", json, "For programs");
  CLI11_PARSE(app, argc, argv);
  if (!plain_malloc) KeepLargeFreeBlocks();
  ::setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  InitLogging("ps_bench");
  spdlog::set_level(spdlog::level::warn);

  // All children first: gRPC does not like to be forked.
  const auto [listening, tcp_port] = ListenOnLoopback();
  const std::string echo_address = FreeLoopbackAddress();
  std::vector<std::unique_ptr<Child>> children;
  children.push_back(std::make_unique<Child>([fd = listening] { ServeTcpEcho(fd); }));
  children.push_back(std::make_unique<Child>([&] { ServeGrpcEcho(echo_address); }));
  std::map<size_t, ClusterSpec> clusters;
  for (const size_t size : sizes) {
    const ClusterSpec& cluster = clusters[size] = {.ps = {FreeLoopbackAddress()}, .workers = {"127.0.0.1:1"}};
    children.push_back(std::make_unique<Child>([&cluster] {
      const auto server = ParameterServer::Start({.cluster = cluster, .shard_index = 0});
      MUSTER_CHECK(server.ok());
      (void)(*server)->Wait();
    }));
  }

  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  if (!json) {
    std::printf("%10s  %28s  %28s  %28s  %s\n", "bytes", "push_pull: p50 us, GB/s", "grpc_echo: p50 us, GB/s",
                "tcp_echo: p50 us, GB/s", "push_pull / grpc_echo GB/s");
  }
  for (const size_t size : sizes) {
    std::map<std::string, Figures> figures;
    std::map<std::string, std::unique_ptr<Exchanger>> exchangers;
    exchangers["push_pull"] = std::make_unique<PushPull>(clusters[size], size);
    exchangers["grpc_echo"] = std::make_unique<GrpcEcho>(echo_address, size);
    exchangers["tcp_echo"] = std::make_unique<TcpEcho>(tcp_port, size);
    for (int round = 0; round < rounds; ++round) {
      for (const auto& [name, exchanger] : exchangers) Measure(*exchanger, size, seconds, &figures[name]);
    }
    nlohmann::ordered_json row = {{"bytes", size}};
    for (const char* const name : {"push_pull", "grpc_echo", "tcp_echo"}) {
      row[name] = {{"p50_us", Median(figures[name].p50_us)}, {"gb_per_s", Median(figures[name].gigabytes)}};
    }
    std::vector<double> ratios;
    for (int round = 0; round < rounds; ++round) {
      ratios.push_back(figures["push_pull"].gigabytes[round] / figures["grpc_echo"].gigabytes[round]);
    }
    row["push_pull_to_grpc_echo"] = Median(ratios);
    if (!json) {
      std::printf("%10zu", size);
      for (const char* const name : {"push_pull", "grpc_echo", "tcp_echo"}) {
        std::printf("  %18.1f  %8.3f", double(row[name]["p50_us"]), double(row[name]["gb_per_s"]));
      }
      std::printf("  %.2f\n", Median(ratios));
      std::fflush(stdout);
    }
    results.push_back(std::move(row));
  }
  nlohmann::ordered_json checkpoint;
  if (rows > 0) checkpoint = MeasureCheckpoint(rows, rounds);
  if (json) {
    const nlohmann::ordered_json all = {{"messages", results}, {"checkpoint", checkpoint}};
    std::printf("%s\n", all.dump(1).c_str());
  } else if (rows > 0) {
    std::printf(
        "checkpoint of %ld rows of 8 with Adagrad: %.1f MB, updates wait %.0f ms, written in %.0f ms\n", rows,
        double(checkpoint["bytes"]) / 1e6, double(checkpoint["copy_ms"]), double(checkpoint["write_ms"]));
  }
  return 0;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) { return muster::Main(argc, argv); }
