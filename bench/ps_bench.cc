// Speed of a parameter server beside what it is made of: a fused push and pull, a bare gRPC echo and a raw
// TCP echo of as many bytes, each through a process of its own on this machine, in turn.

#include <arpa/inet.h>
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <absl/strings/str_cat.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <barrier>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/allocator.h"
#include "base/certificates.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/logging.h"
#include "base/random.h"
#include "base/status.h"
#include "bench/processes.h"
#include "ps/client.h"
#include "ps/job_config.h"
#include "ps/server.h"
#include "ps/shard_checkpoint.h"
#include "ps/shard_connection.h"

namespace muster {
namespace {

constexpr char kHelp[] =
    R"(Times messages to a parameter server and back, beside the same bytes through a bare gRPC stream and through TCP.

push_pull: asynchronous SGD; a gradient goes up and the updated parameters come down, by gRPC over TCP (tcp), with
           the mutual TLS of jobs (tls), and as tasks of one host do it, through shared memory (same_host). Each
           worker is a thread, each server a process; of several servers each has its part of a message.
grpc_echo: a bidirectional stream of ByteBuffers that comes back after every byte was read once.
tcp_echo:  a socket; every byte comes back. Each worker has an echo of its own.
GB/s counts the bytes of a message once for both ways, of all workers together. With several in flight the p50 is the
time between two that come back to a worker.
checkpoint: a shard with a table of rows that have all been updated: how long updates wait for the copy, and how
           long it takes in the background to write, checksum and sync the file.)";

constexpr const char* kMethod = "/bench.Echo/Exchange";

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

bool WriteAll(int fd, const char* bytes, size_t count) {
  while (count > 0) {
    const ssize_t put = ::send(fd, bytes, count, MSG_NOSIGNAL);
    if (put <= 0) return false;
    bytes += put;
    count -= static_cast<size_t>(put);
  }
  return true;
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
      if (!ReadAll(fd, message.data() + 8, size - 8) || !WriteAll(fd, message.data(), size)) break;
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

/// Something that sends messages, each of which comes back.
class Exchanger {
 public:
  virtual ~Exchanger() = default;
  /// Until one more has come back, with up to `in_flight` on their way.
  virtual void Exchange(int in_flight) = 0;
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
  // What is being echoed has to be read while the rest is sent, or both ends would wait for each other.
  void Exchange(int in_flight) override {
    const uint64_t size = message_.size();
    const uint64_t to_receive = (received_ / size + 1) * size,
                   to_send = received_ / size * size + in_flight * size;
    while (received_ < to_receive) {
      const size_t at = sent_ % size, received_at = received_ % size;
      const ssize_t put =
          sent_ < to_send ? ::send(fd_, message_.data() + at, size - at, MSG_DONTWAIT | MSG_NOSIGNAL) : 0;
      if (put > 0) sent_ += static_cast<uint64_t>(put);
      // Blocking where there is nothing else to do, since that is the fastest.
      const ssize_t got =
          ::recv(fd_, answer_.data() + received_at, size - received_at, sent_ < to_send ? MSG_DONTWAIT : 0);
      MUSTER_CHECK(got != 0);
      if (got > 0) received_ += static_cast<uint64_t>(got);
      if (put < 0 && got < 0) {
        pollfd waits{.fd = fd_, .events = POLLIN | POLLOUT, .revents = 0};
        (void)::poll(&waits, 1, -1);
      }
    }
  }

 private:
  const int fd_;
  std::vector<char> message_;
  std::vector<char> answer_;
  uint64_t sent_ = 0, received_ = 0;
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
    stream_->StartCall(&started_);
    Await();
    stream_->Read(&answer_, &received_);
  }
  ~GrpcEcho() override {
    context_.TryCancel();
    grpc::Status status;
    stream_->Finish(&status, nullptr);
    queue_.Shutdown();
    void* tag;
    bool ok;
    while (queue_.Next(&tag, &ok)) {
    }
  }
  void Exchange(int in_flight) override {
    for (const uint64_t wanted = received_ + 1; received_ < wanted;) {
      if (!writes_ && sent_ < wanted - 1 + in_flight) {
        const grpc::Slice slice(values_.data(), values_.size(), grpc::Slice::STATIC_SLICE);
        stream_->Write(grpc::ByteBuffer(&slice, 1), &sent_);
        writes_ = true;
      }
      Await();
    }
  }

 private:
  // One of the three things that may be under way.
  void Await() {
    void* tag;
    bool ok = false;
    MUSTER_CHECK(queue_.Next(&tag, &ok) && ok);
    ++*static_cast<uint64_t*>(tag);
    if (tag == &sent_) writes_ = false;
    if (tag != &received_) return;
    sum_ += SumOfBytes(answer_);
    answer_.Clear();
    stream_->Read(&answer_, &received_);
  }

  std::vector<char> values_;
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericStub> stub_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
  grpc::ByteBuffer answer_;
  uint64_t started_ = 0, sent_ = 0, received_ = 0;
  bool writes_ = false;
  uint64_t sum_ = 0;
};

ParameterLayout LayoutOf(size_t bytes) {
  auto layout =
      ParameterLayout::Create({{.name = "w", .shape = {static_cast<int64_t>(bytes / sizeof(float))}}});
  MUSTER_CHECK(layout.ok());
  return *layout;
}

ps::JobConfig ConfigOf(const ParameterLayout& layout, const ClusterSpec& cluster) {
  const OptimizerConfig sgd{.kind = OptimizerKind::kSgd, .learning_rate = 0.1f};
  const UpdateConfig update{.rule = {.mode = UpdateMode::kAsync, .worker_count = cluster.rank_count()}};
  return MakeJobConfig(layout, {}, update, {&sgd, 1}, /*seed=*/1);
}

/// As the trainer does it: one at a time.
class PushPull final : public Exchanger {
 public:
  PushPull(const ClusterSpec& cluster, int rank, size_t bytes, const std::optional<TlsIdentity>& tls,
           Transport transport) {
    const ParameterLayout layout = LayoutOf(bytes);
    client_ = std::make_unique<ParameterServerClient>(
        ParameterServerClientOptions{.cluster = cluster,
                                     .task = {Role::kWorker, rank},
                                     .config = ConfigOf(layout, cluster),
                                     .layout = layout,
                                     .tls = tls,
                                     .transport = transport});
    parameters_.resize(layout.size());
    gradient_.assign(layout.size(), 0.5f);
    const auto joined = client_->Join(parameters_);
    MUSTER_CHECK(joined.ok(), std::string(joined.status().message()).c_str());
  }
  void Exchange(int) override {
    const auto result =
        client_->PushPull({.samples = 1, .gradient = gradient_, .rows = no_rows_}, parameters_, no_rows_, {});
    MUSTER_CHECK(result.ok(), std::string(result.status().message()).c_str());
  }

 private:
  std::unique_ptr<ParameterServerClient> client_;
  std::vector<float> parameters_, gradient_;
  const RowIndex no_rows_{{}, {}, 0};
};

/// Several at a time, which the trainer has no use for: from the connections.
class ManyPushPulls final : public Exchanger {
 public:
  ManyPushPulls(const ClusterSpec& cluster, int rank, size_t bytes, const std::optional<TlsIdentity>& tls,
                Transport transport) {
    const ParameterLayout layout = LayoutOf(bytes);
    const int count = static_cast<int>(cluster.ps.size());
    parameters_.resize(layout.size());
    gradient_.assign(layout.size(), 0.5f);
    for (int i = 0; i < count; ++i) {
      shards_.push_back({Connect(cluster.ps[i], i, tls, transport), layout.Shard(i, count)});
    }
    ps::ClientHeader join;
    join.set_version(kWireVersion);
    join.set_request(1);
    join.mutable_join()->set_rank(static_cast<uint32_t>(rank));
    join.mutable_join()->set_shard_count(static_cast<uint32_t>(count));
    join.mutable_join()->set_worker_uuid(RandomName(20));
    *join.mutable_join()->mutable_config() = ConfigOf(layout, cluster);
    for (int i = 0; i < count; ++i) {
      join.mutable_join()->set_shard_index(static_cast<uint32_t>(i));
      shards_[i].connection->Send(join, {});
    }
    Receive();
  }

  void Exchange(int in_flight) override {
    for (; sent_ < received_ + in_flight; ++sent_) {
      ps::ClientHeader push;
      push.set_version(kWireVersion);
      push.set_request(2 + sent_);
      push.mutable_push()->set_sequence(1 + sent_);
      push.mutable_push()->set_samples(1);
      for (const Shard& shard : shards_) {
        shard.connection->Send(push, {BorrowFloats(PartOf(gradient_, shard), shard.connection->Lease())});
      }
    }
    Receive();
    ++received_;
  }

 private:
  struct Shard {
    std::unique_ptr<ShardConnection> connection;
    LayoutRange range;
  };

  static std::unique_ptr<ShardConnection> Connect(const std::string& address, int index,
                                                  const std::optional<TlsIdentity>& tls,
                                                  Transport transport) {
    const TimePoint deadline = Now() + std::chrono::seconds(20);
    while (true) {
      auto connection = ShardConnection::Connect(address, {Role::kPs, index}, tls, transport, deadline);
      if (connection.ok()) return *std::move(connection);
      MUSTER_CHECK(Now() < deadline, std::string(connection.status().message()).c_str());
      std::this_thread::sleep_for(std::chrono::milliseconds(10));  // the server may not listen yet
    }
  }

  static std::span<float> PartOf(std::span<float> values, const Shard& shard) {
    return values.subspan(shard.range.begin, shard.range.size());
  }

  void Receive() {
    for (const Shard& shard : shards_) {
      const auto reply = shard.connection->Receive(Now() + std::chrono::seconds(20));
      MUSTER_CHECK(reply.ok(), std::string(reply.status().message()).c_str());
      MUSTER_CHECK(!reply->header.has_error(), reply->header.error().message().c_str());
      reply->payload.CopyTo(PartOf(parameters_, shard));
    }
  }

  std::vector<float> parameters_, gradient_;  // outlive the connections
  std::vector<Shard> shards_;
  uint64_t sent_ = 0, received_ = 0;
};

struct Figures {
  std::vector<double> p50_us;  // of each round
  std::vector<double> gigabytes;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// One thread for each exchanger, all at the same time.
void Measure(const std::vector<std::unique_ptr<Exchanger>>& exchangers, size_t bytes, int in_flight,
             double seconds, Figures* figures) {
  std::vector<std::vector<double>> microseconds(exchangers.size());
  std::vector<double> rates(exchangers.size());
  {
    std::barrier begin(static_cast<std::ptrdiff_t>(exchangers.size()));
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < exchangers.size(); ++i) {
      threads.emplace_back([&, i] {
        for (int warm_up = 0; warm_up < 10; ++warm_up) exchangers[i]->Exchange(in_flight);
        begin.arrive_and_wait();
        const TimePoint start = Now();
        TimePoint last = start;
        while (ToSeconds(last - start) < seconds) {
          exchangers[i]->Exchange(in_flight);
          const TimePoint now = Now();
          microseconds[i].push_back(ToSeconds(now - last) * 1e6);
          last = now;
        }
        rates[i] = static_cast<double>(microseconds[i].size()) / ToSeconds(last - start);
      });
    }
  }
  figures->gigabytes.push_back(static_cast<double>(bytes) * std::accumulate(rates.begin(), rates.end(), 0.0) /
                               1e9);
  std::vector<double> all;
  for (const auto& of_one : microseconds) all.insert(all.end(), of_one.begin(), of_one.end());
  figures->p50_us.push_back(Median(std::move(all)));
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
  int workers = 1, servers = 1;
  std::vector<int> in_flight = {1, 10};
  std::vector<std::string> names = {"tcp", "tls", "same_host", "grpc_echo", "tcp_echo"};
  std::vector<size_t> sizes = {4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20};
  app.add_option("--seconds", seconds, "Of each measurement")->capture_default_str();
  app.add_option("--rounds", rounds, "Of all in turn; medians are printed")->capture_default_str();
  app.add_option("--bytes", sizes, "Of a message, each a multiple of 64")->capture_default_str();
  app.add_option("--in_flight", in_flight, "Messages at a time")->capture_default_str();
  app.add_option("--workers", workers, "All push at the same time")
      ->capture_default_str()
      ->check(CLI::Range(1, 64));
  app.add_option("--servers", servers, "Each with its part")->capture_default_str()->check(CLI::Range(1, 16));
  app.add_option("--rows", rows, "Of the shard whose checkpoint is written; 0: none")->capture_default_str();
  app.add_option("--transport", names, "Of tcp, tls, same_host, grpc_echo, tcp_echo; all by default")
      ->check(CLI::IsMember(names));
  app.add_flag("--plain_malloc", plain_malloc, "Without what the trainer asks of the allocator");
  app.add_flag("--json", json, "For programs");
  CLI11_PARSE(app, argc, argv);
  if (!plain_malloc) KeepLargeFreeBlocks();
  ::setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  InitLogging("ps_bench");
  spdlog::set_level(spdlog::level::warn);

  // All children first: gRPC does not like to be forked.
  std::vector<uint16_t> tcp_ports;  // of the echoes of each worker
  std::vector<std::string> echo_addresses;
  std::vector<Child> children;
  for (int i = 0; i < workers; ++i) {
    const auto [listening, port] = ListenOnLoopback();
    tcp_ports.push_back(port);
    children.emplace_back([fd = listening] { ServeTcpEcho(fd); });
    echo_addresses.push_back(FreeLoopbackAddress());
    children.emplace_back([&address = echo_addresses.back()] { ServeGrpcEcho(address); });
  }
  const auto authority = MakeAuthority("ps_bench");
  MUSTER_CHECK(authority.ok());
  const auto identity = [&](TaskId task) {
    const auto certificate = IssueCertificate(*authority, TlsName(task));
    MUSTER_CHECK(certificate.ok());
    return TlsIdentity{.ca_pem = authority->certificate_pem,
                       .certificate_pem = certificate->certificate_pem,
                       .key_pem = certificate->key_pem};
  };
  std::vector<TlsIdentity> worker_identities;
  for (int i = 0; i < workers; ++i) worker_identities.push_back(identity({Role::kWorker, i}));
  std::map<std::pair<size_t, bool>, ClusterSpec> clusters;  // by size, and whether with TLS
  for (const size_t size : sizes) {
    for (const bool tls : {false, true}) {
      ClusterSpec& cluster = clusters[{size, tls}];
      for (int i = 0; i < servers; ++i) cluster.ps.push_back(FreeLoopbackAddress());
      for (int i = 0; i < workers; ++i) cluster.workers.push_back(absl::StrFormat("127.0.0.1:%d", 1 + i));
      for (int i = 0; i < servers; ++i) {
        const auto own = tls ? std::optional<TlsIdentity>(identity({Role::kPs, i})) : std::nullopt;
        children.emplace_back([&cluster, &own, i] {
          const auto server = ParameterServer::Start({.cluster = cluster, .shard_index = i, .tls = own});
          MUSTER_CHECK(server.ok());
          (void)(*server)->Wait();
        });
      }
    }
  }

  constexpr struct {
    const char *name, *to;
  } kRatios[] = {{"tcp", "grpc_echo"}, {"tls", "tcp"}, {"same_host", "tcp"}};
  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  if (!json) {
    std::printf("%18s", "bytes x in flight");
    for (const std::string& name : names) std::printf("  %10s: p50 us, GB/s", name.c_str());
    for (const auto& [name, to] : kRatios) std::printf("  %9s/%s", name, to);
    std::printf("\n");
  }
  for (const size_t size : sizes) {
    for (const int count : in_flight) {
      std::map<std::string, Figures> figures;
      for (int round = 0; round < rounds; ++round) {
        for (const std::string& name : names) {
          const Transport transport = name == "same_host" ? Transport::kAuto : Transport::kTcp;
          const ClusterSpec& cluster = clusters[{size, name == "tls"}];
          std::vector<std::unique_ptr<Exchanger>> exchangers;
          for (int i = 0; i < workers; ++i) {
            const auto tls = name == "tls" ? std::optional<TlsIdentity>(worker_identities[i]) : std::nullopt;
            if (name == "grpc_echo") {
              exchangers.push_back(std::make_unique<GrpcEcho>(echo_addresses[i], size));
            } else if (name == "tcp_echo") {
              exchangers.push_back(std::make_unique<TcpEcho>(tcp_ports[i], size));
            } else if (count == 1) {
              exchangers.push_back(std::make_unique<PushPull>(cluster, i, size, tls, transport));
            } else {
              exchangers.push_back(std::make_unique<ManyPushPulls>(cluster, i, size, tls, transport));
            }
          }
          Measure(exchangers, size, count, seconds, &figures[name]);
        }
      }
      nlohmann::ordered_json row = {
          {"bytes", size}, {"in_flight", count}, {"workers", workers}, {"servers", servers}};
      for (const std::string& name : names) {
        row[name] = {{"p50_us", Median(figures[name].p50_us)}, {"gb_per_s", Median(figures[name].gigabytes)}};
      }
      const auto is_measured = [&](const char* name) {
        return std::find(names.begin(), names.end(), name) != names.end();
      };
      for (const auto& [name, to] : kRatios) {
        if (!is_measured(name) || !is_measured(to)) continue;
        std::vector<double> ratios;
        for (int round = 0; round < rounds; ++round) {
          ratios.push_back(figures[name].gigabytes[round] / figures[to].gigabytes[round]);
        }
        row[absl::StrCat(name, "_to_", to)] = Median(ratios);
      }
      if (!json) {
        std::printf("%14zu x%2d", size, count);
        for (const std::string& name : names) {
          std::printf("  %14.1f  %8.3f", double(row[name]["p50_us"]), double(row[name]["gb_per_s"]));
        }
        for (const auto& [name, to] : kRatios) {
          const auto ratio = row.find(absl::StrCat(name, "_to_", to));
          const int width = static_cast<int>(10 + std::strlen(to));
          ratio == row.end() ? std::printf("  %*s", width, "")
                             : std::printf("  %*.2f", width, double(*ratio));
        }
        std::printf("\n");
        std::fflush(stdout);
      }
      results.push_back(std::move(row));
    }
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
