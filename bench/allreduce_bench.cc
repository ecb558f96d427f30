// Speed of an allreduce beside Gloo, Open MPI and a TCP round trip, with the ranks as processes of this
// machine, in turn.

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "base/certificates.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/logging.h"
#include "base/process.h"
#include "base/status.h"
#include "bench/processes.h"
#include "collective/native.h"
#if defined(MUSTER_GLOO)
#include "collective/gloo.h"
#endif

namespace muster {
namespace {

constexpr char kHelp[] =
    R"(Times sums over all ranks, each a process of this machine, on a core of its own if there are enough of them:
microseconds per operation, the median over blocks.

shared_memory: as ranks of one host do it.
tcp, tls:      as ranks of several hosts do it, plain and with the mutual TLS of jobs.
gloo:          Gloo's own allreduce over TCP, where it was there when this was built.
mpi_tcp, mpi_shared: MPI_Allreduce of Open MPI, over TCP and over shared memory, where mpirun is installed.
round_trip:    between two processes, of as many bytes, over a blocking TCP socket: there and back.)";

struct Run {
  std::string name;
  int ranks = 2;
  std::vector<size_t> sizes;  // bytes
  double seconds = 0.3;       // for each size
};

using Microseconds = std::map<size_t, double>;  // by size

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// On each rank. Blocks of about 10 ms, whose length rank 0 says; the first ones warm up.
double TimeAllReduce(Collective& group, size_t bytes, double seconds) {
  std::vector<float> input(bytes / sizeof(float), 1), output(input.size());
  const auto block = [&](uint32_t count) {
    MUSTER_CHECK(group.Run(Barrier()).ok());
    const TimePoint start = Now();
    for (uint32_t i = 0; i < count; ++i) {
      const absl::Status status = group.Run(AllReduce(input, output));
      MUSTER_CHECK(status.ok(), status.ToString());
    }
    return ToSeconds(Now() - start) / count;
  };
  const auto told = [&](uint32_t number) {
    const absl::Status status = group.Run(Broadcast(std::as_writable_bytes(std::span(&number, 1)), 0));
    MUSTER_CHECK(status.ok(), status.ToString());
    return number;
  };
  (void)block(5);
  const double estimate = block(5);
  MUSTER_CHECK(output[0] == group.size() && output.back() == group.size(), "a sum is wrong");
  const uint32_t count = told(static_cast<uint32_t>(std::max(1.0, 0.01 / estimate)));
  const uint32_t blocks = told(static_cast<uint32_t>(std::clamp(seconds / (estimate * count), 5.0, 1000.0)));
  std::vector<double> times;
  for (uint32_t i = 0; i < blocks; ++i) times.push_back(block(count) * 1e6);
  return Median(std::move(times));
}

// As ranks of other hosts have it, and as mpirun gives it to its processes: else two of them may share a core
// for a while, though another one is free, and are half as fast.
void HaveOwnCore(int rank) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  CPU_SET(rank, &cores);
  (void)::sched_setaffinity(0, sizeof cores, &cores);  // where it is not allowed, they are wherever they are
}

// Each rank in a process, on a core of its own if there are enough; what rank 0 measures.
Microseconds TimeRanks(const Run& run, const std::function<void(int rank, int result_fd)>& body) {
  int pipe[2];
  MUSTER_CHECK(::pipe2(pipe, O_CLOEXEC) == 0);
  const UniqueFd read_end(pipe[0]);
  UniqueFd write_end(pipe[1]);
  std::vector<Child> children;
  for (int rank = 0; rank < run.ranks; ++rank) {
    children.emplace_back([&, rank] {
      if (run.ranks <= ::sysconf(_SC_NPROCESSORS_ONLN)) HaveOwnCore(rank);
      body(rank, write_end.get());
    });
  }
  write_end.reset();
  Microseconds result;
  for (const size_t size : run.sizes) {
    double microseconds = 0;
    if (::read(read_end.get(), &microseconds, sizeof microseconds) == sizeof microseconds) {
      result[size] = microseconds;
    }
  }
  for (Child& child : children) child.AwaitSuccess();
  return result;
}

void Report(int fd, double microseconds) {
  MUSTER_CHECK(::write(fd, &microseconds, sizeof microseconds) == sizeof microseconds);
}

void TimeAllSizes(const Run& run, Collective& group, int result_fd) {
  for (const size_t size : run.sizes) {
    const double microseconds = TimeAllReduce(group, size, run.seconds);
    if (group.rank() == 0) Report(result_fd, microseconds);
  }
  MUSTER_CHECK(group.Run(Barrier()).ok());
}

Microseconds TimeNative(const Run& run) {
  GroupIdentity identity;
  std::vector<TlsIdentity> tls(run.ranks);
  const auto authority = MakeAuthority("allreduce_bench");
  for (int rank = 0; rank < run.ranks; ++rank) {
    const TaskId task{Role::kWorker, rank};
    identity.members.push_back({task, FreeLoopbackAddress()});
    const auto certificate = IssueCertificate(*authority, TlsName(task));
    tls[rank] = {authority->certificate_pem, certificate->certificate_pem, certificate->key_pem};
  }
  return TimeRanks(run, [&](int rank, int result_fd) {
    identity.rank = rank;
    auto context = run.name == "tls" ? *TlsContext::Create(tls[rank]) : nullptr;
    auto listener = PeerListener::Listen(identity.members[rank].address, context);
    MUSTER_CHECK(listener.ok(), listener.status().ToString());
    Interrupt interrupt;
    auto group = MakeNative({.identity = identity, .shares_memory = run.name == "shared_memory"}, **listener,
                            interrupt);
    MUSTER_CHECK(group.ok(), group.status().ToString());
    TimeAllSizes(run, **group, result_fd);
  });
}

#if defined(MUSTER_GLOO)
Microseconds TimeGloo(const Run& run) {
  const TemporaryDirectory folder;
  return TimeRanks(run, [&](int rank, int result_fd) {
    auto group = MakeGloo({.rank = rank, .size = run.ranks, .meeting_folder = folder.path()});
    MUSTER_CHECK(group.ok(), group.status().ToString());
    TimeAllSizes(run, **group, result_fd);
  });
}
#endif

void Move(int fd, std::vector<char>& bytes, bool send) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t moved = send ? ::send(fd, bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL)
                               : ::recv(fd, bytes.data() + done, bytes.size() - done, 0);
    MUSTER_CHECK(moved > 0);
    done += static_cast<size_t>(moved);
  }
}

Microseconds TimeRoundTrip(const Run& run) {
  Run two = run;
  two.ranks = 2;
  const auto [listening_fd, port] = ListenOnLoopback();
  const UniqueFd listening(listening_fd);
  const sockaddr_in address{
      .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
  const auto* const where = reinterpret_cast<const sockaddr*>(&address);
  const int on = 1;
  return TimeRanks(two, [&](int rank, int result_fd) {
    const UniqueFd fd(rank == 1 ? ::accept(listening.get(), nullptr, nullptr)
                                : ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (rank == 0) MUSTER_CHECK(::connect(fd.get(), where, sizeof address) == 0);
    MUSTER_CHECK(::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
    for (const size_t size : two.sizes) {
      std::vector<char> bytes(size);
      constexpr int kTrips = 200;
      std::vector<double> times;
      for (int i = 0; i < kTrips; ++i) {
        const TimePoint start = Now();
        Move(fd.get(), bytes, rank == 0);
        Move(fd.get(), bytes, rank != 0);
        times.push_back(ToSeconds(Now() - start) * 1e6);
      }
      if (rank == 0) Report(result_fd, Median(std::move(times)));
    }
  });
}

// Beside this program lies what mpirun starts.
std::string MpiProgram() {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "mpi_allreduce").string();
}

bool HasMpi() {
  const auto version = RunCommand({.argv = {"mpirun", "--version"}}, Now() + std::chrono::seconds(20));
  return version.ok() && version->exit_code == 0 && std::filesystem::exists(MpiProgram());
}

Microseconds TimeMpi(const Run& run) {
  SpawnOptions command{.argv = {"mpirun", "--oversubscribe", "-np", std::to_string(run.ranks), "--mca", "pml",
                                "ob1", "--mca", "btl", run.name == "mpi_tcp" ? "tcp,self" : "vader,self"}};
  if (run.ranks > ::sysconf(_SC_NPROCESSORS_ONLN)) {
    command.argv.insert(command.argv.end(), {"--mca", "mpi_yield_when_idle", "1"});
  }
  if (::geteuid() == 0) command.argv.push_back("--allow-run-as-root");
  command.argv.insert(command.argv.end(), {MpiProgram(), std::to_string(run.seconds)});
  for (const size_t size : run.sizes) command.argv.push_back(std::to_string(size));
  const auto result = RunCommand(command, Now() + std::chrono::minutes(5));
  MUSTER_CHECK(result.ok() && result->exit_code == 0,
               result.ok() ? result->stderr_text : result.status().ToString());
  Microseconds microseconds;
  std::istringstream lines(result->stdout_text);
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    microseconds[json.at("bytes").get<size_t>()] = json.at("microseconds").get<double>();
  }
  return microseconds;
}

Microseconds Time(const Run& run) {
  if (run.name == "round_trip") return TimeRoundTrip(run);
  if (run.name.starts_with("mpi_")) return TimeMpi(run);
#if defined(MUSTER_GLOO)
  if (run.name == "gloo") return TimeGloo(run);
#endif
  return TimeNative(run);
}

int Main(int argc, char** argv) {
  CLI::App app(kHelp, "allreduce_bench");
  double seconds = 0.3;
  int rounds = 5;
  bool json = false;
  std::vector<int> ranks = {2, 4};
  std::vector<size_t> sizes = {4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20};
  std::vector<std::string> known = {"shared_memory", "tcp", "tls"};
#if defined(MUSTER_GLOO)
  known.push_back("gloo");
#endif
  if (HasMpi()) known.insert(known.end(), {"mpi_tcp", "mpi_shared"});
  known.push_back("round_trip");
  std::vector<std::string> names = known;
  app.add_option("--seconds", seconds, "Of each measurement")->capture_default_str();
  app.add_option("--rounds", rounds, "Of all in turn; medians are printed")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--bytes", sizes, "Of the range that is summed, each a multiple of 4")
      ->capture_default_str()
      ->check(CLI::Range(sizeof(float), size_t{1} << 40));
  app.add_option("--ranks", ranks, "Processes")->capture_default_str()->check(CLI::Range(2, 64));
  app.add_option("--backend", names, "All by default")->check(CLI::IsMember(known));
  app.add_flag("--json", json, "For programs");
  CLI11_PARSE(app, argc, argv);
  InitLogging("allreduce_bench");
  spdlog::set_level(spdlog::level::warn);

  nlohmann::ordered_json results = nlohmann::ordered_json::array();
  for (const int count : ranks) {
    std::map<std::string, std::map<size_t, std::vector<double>>> measured;
    for (int round = 0; round < rounds; ++round) {
      for (const std::string& name : names) {
        for (const auto& [size, microseconds] :
             Time({.name = name, .ranks = count, .sizes = sizes, .seconds = seconds})) {
          measured[name][size].push_back(microseconds);
        }
      }
    }
    if (!json) {
      std::printf("%d ranks, us %8s", count, "bytes");
      for (const std::string& name : names) std::printf("  %13s", name.c_str());
      std::printf("\n");
    }
    for (const size_t size : sizes) {
      nlohmann::ordered_json row = {{"ranks", count}, {"bytes", size}};
      if (!json) std::printf("%20zu", size);
      for (const std::string& name : names) {
        const std::vector<double>& times = measured[name][size];
        if (times.empty()) continue;
        row[name] = Median(times);
        if (!json) std::printf("  %13.1f", Median(times));
      }
      if (!json) std::printf("\n");
      std::fflush(stdout);
      results.push_back(std::move(row));
    }
  }
  if (json) std::printf("%s\n", results.dump(1).c_str());
  return 0;
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) { return muster::Main(argc, argv); }
