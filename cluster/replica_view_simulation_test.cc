// A shard with two servers and its workers, whose connections break and whose processes die at any time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <deque>
#include <map>
#include <optional>

#include "base/random.h"
#include "cluster/replica_view.h"

namespace muster {
namespace {

// Servers 0 and 1, workers from 2 on. A connection delivers in order, and loses what is on its way when it
// breaks. What the servers and workers do is what ps/replication.h and ps/shard_sessions.h do, with pushes
// that are numbers.
class Simulation {
 public:
  Simulation(uint64_t seed, int workers, bool one_host) : random_(seed), workers_(workers) {
    ClusterSpec spec{.ps = {"a:1", "b:1"}, .workers = {}, .chief = {}};
    for (int i = 0; i < workers; ++i) spec.workers.push_back(absl::StrFormat("%c:%d", 'c' + i, i + 1));
    if (one_host) {
      spec = {.ps = {"a:1", "a:2"}, .workers = {}, .chief = {}};
      for (int i = 0; i < workers; ++i) spec.workers.push_back(absl::StrFormat("a:%d", i + 3));
    }
    votes_ = VotesOf(spec, 0);
    for (int i : {0, 1}) StartServer(i);
    for (Worker& worker : workers_) worker.next = 1;
  }

  // Faults may come while `faults` of them are left; `gently`: connections may break at any time, but a
  // process ends only when all is whole.
  void Run(int rounds, int faults, bool gently) {
    for (int i = 0; i < rounds && !is_lost_ && !testing::Test::HasFatalFailure(); ++i) {
      if (faults > 0 && random_.NextBelow(60) == 0) {
        --faults;
        Fault(/*may_end_processes=*/!gently || IsWhole());
      } else {
        Step();
      }
    }
  }

  // Both servers have everything, and all workers have got on with it, but for those that come for the first
  // time.
  bool IsWhole() const {
    for (const auto& [ends, queue] : queues_) {
      for (const Message& message : queue) {
        if (message.kind == Message::kClosed || message.kind == Message::kPropose ||
            message.kind == Message::kPromise) {
          return false;
        }
      }
    }
    const int primary = servers_[0].view->role() == ReplicaRole::kPrimary ? 0 : 1;
    return servers_[primary].view->role() == ReplicaRole::kPrimary && servers_[primary].view->has_backup() &&
           !servers_[primary].syncing && servers_[1 - primary].view->role() == ReplicaRole::kBackup &&
           servers_[0].view->view() == servers_[1].view->view() && !servers_[primary].view->is_proposing() &&
           std::all_of(workers_.begin(), workers_.end(), [&](const Worker& worker) {
             const bool is_first = worker.process == 1 && worker.ballot.view() == 0;
             return is_first || (worker.joined && worker.server == primary);
           });
  }

  std::string Describe() const {
    std::string text;
    for (const Server& server : servers_) {
      text += absl::StrFormat(
          "[role %d view %d backup %d proposing %d connected %d syncing %d joined %d held %d] ",
          static_cast<int>(server.view->role()), server.view->view(), server.view->has_backup(),
          server.view->is_proposing(), server.connected, server.syncing, server.joined.size(),
          server.held.size());
    }
    for (const Worker& worker : workers_) {
      text += absl::StrFormat("(at %d view %d connected %d joined %d) ", worker.server, worker.ballot.view(),
                              worker.connected, worker.joined);
    }
    return text;
  }
  size_t acknowledged() const { return acknowledged_.size(); }
  // No process has all that was acknowledged: more was lost than two servers are for.
  bool is_lost() const { return is_lost_; }

 private:
  struct Member {
    uint64_t process = 0;  // the newest
    bool has_predecessor = false;
  };
  struct Message {
    enum Kind {
      kHello,
      kHelloReply,
      kBase,
      kRecord,
      kInSync,
      kFollows,
      kApplied,
      kJoin,
      kJoinReply,
      kNotPrimary,
      kPush,
      kPushReply,
      kPropose,
      kPromise,
      kClosed
    } kind = kHello;
    uint64_t view = 0;
    ReplicaRole role = ReplicaRole::kNone;
    uint64_t number = 0;  // of a push, or how many records were applied
    std::set<uint64_t> base;
    uint64_t promised = 0;
    uint64_t process = 0;
    std::map<int, Member> members;
    bool is_sole = false;
  };
  struct Server {
    std::optional<ReplicaView> view;
    std::set<uint64_t> pushes;
    std::map<int, Member> members;  // by rank
    // As a primary: what has gone to the backup, and who waits for it.
    bool connected = false, streams = false, syncing = false, offered = false;
    uint64_t sent = 0, applied = 0;
    std::map<uint64_t, std::pair<int, uint64_t>> waiting;  // by record: worker and its push
    std::map<int, std::pair<uint64_t, uint64_t>>
        held;                        // joins, until a view has begun: promised view, process
    std::map<int, uint64_t> joined;  // processes

    void Join(int rank, uint64_t process) {
      Member& member = members[rank];
      member.has_predecessor = member.has_predecessor || (member.process != 0 && member.process != process);
      member.process = process;
    }
    bool IsNewest(int rank, uint64_t process) const {
      const auto member = members.find(rank);
      return member == members.end() || member->second.process == process;
    }
  };
  struct Worker {
    ReplicaBallot ballot;
    int server = 0;
    bool connected = false, joined = false;
    uint64_t next = 1;  // push
    uint64_t process = 1;
  };

  static int Id(int rank) { return rank + 2; }
  uint64_t PushOf(int rank) const { return workers_[rank].next * 100 + static_cast<uint64_t>(rank); }
  std::deque<Message>& Queue(int from, int to) { return queues_[{from, to}]; }

  void StartServer(int index) {
    Server& server = servers_[index];
    server = {};
    server.view.emplace(votes_.ranks, index == 0 ? votes_.primary : votes_.backup);
  }

  void Break(int a, int b) {
    Queue(a, b) = {Message{.kind = Message::kClosed}};
    Queue(b, a) = {Message{.kind = Message::kClosed}};
  }

  void Fault(bool may_end_processes) {
    const uint64_t kind = random_.NextBelow(may_end_processes ? 4 : 2);
    if (kind == 0) return Break(0, 1);
    if (kind == 1) return Break(static_cast<int>(random_.NextBelow(2)), Id(AnyRank()));
    if (kind == 2) {
      const int rank = AnyRank();
      const Worker& before = workers_[rank];
      workers_[rank] = {.ballot = {}, .next = before.next, .process = before.process + 1};
      for (int server : {0, 1}) Break(server, Id(rank));
      return;
    }
    const int index = static_cast<int>(random_.NextBelow(2));
    StartServer(index);
    Break(0, 1);
    for (size_t rank = 0; rank < workers_.size(); ++rank) Break(index, Id(static_cast<int>(rank)));
    // The closing of its connections is nothing to the new process.
    Queue(1 - index, index).clear();
    for (size_t rank = 0; rank < workers_.size(); ++rank) Queue(Id(static_cast<int>(rank)), index).clear();
    const auto has_all = [&](const Server& server) {
      return server.view->role() != ReplicaRole::kNone &&
             std::includes(server.pushes.begin(), server.pushes.end(), acknowledged_.begin(),
                           acknowledged_.end());
    };
    is_lost_ = is_lost_ || (!has_all(servers_[0]) && !has_all(servers_[1]));
  }

  int AnyRank() { return static_cast<int>(random_.NextBelow(workers_.size())); }

  void Step() {
    std::vector<std::pair<int, int>> busy;
    for (const auto& [ends, queue] : queues_) {
      if (!queue.empty()) busy.push_back(ends);
    }
    const uint64_t choice = random_.NextBelow(busy.size() + 2 + workers_.size());
    if (choice < busy.size()) {
      const auto [from, to] = busy[choice];
      const Message message = Queue(from, to).front();
      Queue(from, to).pop_front();
      to < 2 ? (from < 2 ? OnServer(to, message) : OnWorkerOf(to, from - 2, message))
             : OnReply(to - 2, from, message);
    } else if (choice < busy.size() + 2) {
      ServerActs(static_cast<int>(choice - busy.size()));
    } else {
      WorkerActs(static_cast<int>(choice - busy.size() - 2));
    }
  }

  // A primary looks for a backup; so does the first server when it has just started.
  void ServerActs(int index) {
    Server& server = servers_[index];
    const ReplicaRole role = server.view->role();
    const bool looks = role == ReplicaRole::kPrimary ||
                       (role == ReplicaRole::kNone && index == 0 && server.view->view() == 0);
    if (!looks || server.connected || !Queue(index, 1 - index).empty() || !Queue(1 - index, index).empty())
      return;
    server.connected = true;
    Queue(index, 1 - index).push_back({.kind = Message::kHello, .view = server.view->view(), .role = role});
  }

  void OnServer(int index, const Message& message) {
    Server& server = servers_[index];
    ReplicaView& view = *server.view;
    const int other = 1 - index;
    const auto reply = [&](Message answer) { Queue(index, other).push_back(std::move(answer)); };
    switch (message.kind) {
      case Message::kHello:
        // A process without anything tells that the one before it is gone.
        if (message.role != ReplicaRole::kPrimary) {
          if (view.Lost()) BeginView(index);
        } else if (view.role() == ReplicaRole::kBackup) {
          view.Touch();
          GiveBack(index);
        } else if (message.view > view.view() && view.role() == ReplicaRole::kPrimary) {
          StepDown(index);
        }
        reply({.kind = Message::kHelloReply, .view = view.view(), .role = view.role()});
        break;
      case Message::kHelloReply:
        if ((message.view > view.view() && message.role == ReplicaRole::kPrimary) ||
            (message.role != ReplicaRole::kNone && view.role() == ReplicaRole::kNone)) {
          if (view.role() == ReplicaRole::kPrimary) StepDown(index);
          server.connected = false;
          break;
        }
        if (view.role() == ReplicaRole::kNone && view.view() == 0) view.Begin();
        if (view.role() != ReplicaRole::kPrimary) break;
        server.streams = server.syncing = true;
        reply({.kind = Message::kBase,
               .view = view.view(),
               .number = server.sent,
               .base = server.pushes,
               .members = server.members});
        break;
      case Message::kBase:
        if (view.role() == ReplicaRole::kPrimary) break;
        server.pushes = message.base;
        server.members = message.members;
        reply({.kind = Message::kApplied, .view = message.view, .number = message.number});
        break;
      case Message::kRecord:
        if (view.role() == ReplicaRole::kPrimary) break;
        server.pushes.insert(message.base.begin(), message.base.end());
        for (const auto& [rank, member] : message.members) server.Join(rank, member.process);
        reply({.kind = Message::kApplied, .view = message.view, .number = message.number});
        break;
      case Message::kInSync:
        if (message.view < view.view() || view.role() == ReplicaRole::kPrimary) break;
        view.Follow(message.view);
        GiveBack(index);
        reply({.kind = Message::kFollows, .view = message.view});
        break;
      case Message::kFollows:
        if (view.role() != ReplicaRole::kPrimary || !server.streams || !server.syncing) break;
        server.syncing = false;
        view.AddBackup(message.view);
        AnswerWhoWaits(index);
        break;
      case Message::kApplied:
        if (view.role() != ReplicaRole::kPrimary || !server.streams) break;
        if (!server.offered) {
          server.offered = true;
          reply({.kind = Message::kInSync, .view = view.OfferBackup()});
          AnswerHeld(index);
        }
        server.applied = message.number;
        if (!server.syncing) AnswerWhoWaits(index);
        break;
      case Message::kClosed:
        server.connected = server.streams = server.syncing = server.offered = false;
        if (view.Lost()) {
          BeginView(index);
        } else if (view.is_proposing() && view.role() == ReplicaRole::kPrimary) {
          for (const auto& [rank, process] : server.joined) Propose(index, rank, process);
        }
        break;
      default:
        FAIL() << "a worker's message";
    }
  }

  void StepDown(int index) {
    servers_[index].view->StepDown();
    servers_[index].waiting.clear();
    for (const auto& [rank, process] : servers_[index].joined) Break(index, Id(rank));
    servers_[index].joined.clear();
  }

  // Those who wait are sent to the other server, with what they have promised.
  void GiveBack(int index) {
    for (const auto& [rank, held] : std::exchange(servers_[index].held, {})) {
      Queue(index, Id(rank)).push_back({.kind = Message::kNotPrimary, .promised = held.first});
    }
  }

  void AnswerHeld(int index) {
    for (const auto& [rank, held] : std::exchange(servers_[index].held, {})) {
      AnswerJoin(index, rank, held.second);
    }
  }

  void BeginView(int index) {
    Server& server = servers_[index];
    const auto missing = [&] {
      return !std::includes(server.pushes.begin(), server.pushes.end(), acknowledged_.begin(),
                            acknowledged_.end());
    };
    ASSERT_FALSE(!is_lost_ && missing())
        << "the primary of view " << server.view->view() << " lacks what was acknowledged";
    if (server.connected) Break(0, 1);
    server.connected = server.streams = server.syncing = server.offered = false;
    server.applied = server.sent;
    AnswerWhoWaits(index);
    for (const auto& [rank, process] : std::map(server.joined)) AnswerJoin(index, rank, process);
    AnswerHeld(index);
  }

  static bool IsSole(const Server& server, int rank, uint64_t process) {
    const auto member = server.members.find(rank);
    return member == server.members.end() ||
           (member->second.process == process && !member->second.has_predecessor);
  }

  // Also says whose the view is that it has.
  void Propose(int index, int rank, uint64_t process) {
    const ReplicaView& view = *servers_[index].view;
    Queue(index, Id(rank))
        .push_back({.kind = Message::kPropose,
                    .view = view.proposed(),
                    .role = view.role(),
                    .number = view.view(),
                    .is_sole = IsSole(servers_[index], rank, process)});
  }

  // As a record: a primary that another view has left behind, unknown to it, gets no new workers.
  void AnswerJoin(int index, int rank, uint64_t process) {
    servers_[index].Join(rank, process);
    Append(index, rank, 0, {.kind = Message::kRecord, .members = {{rank, {.process = process}}}});
  }

  void Append(int index, int rank, uint64_t push, Message record) {
    Server& server = servers_[index];
    record.view = server.view->view();
    record.number = ++server.sent;
    server.waiting[server.sent] = {Id(rank), push};
    if (server.streams) Queue(index, 1 - index).push_back(std::move(record));
    if (!server.view->has_backup()) server.applied = server.sent;
    AnswerWhoWaits(index);
  }

  void AnswerWhoWaits(int index) {
    Server& server = servers_[index];
    while (!server.waiting.empty() && server.waiting.begin()->first <= server.applied) {
      const auto [worker, push] = server.waiting.begin()->second;
      server.waiting.erase(server.waiting.begin());
      if (push != 0) {
        acknowledged_.insert(push);
        Queue(index, worker).push_back({.kind = Message::kPushReply, .number = push});
      } else {
        server.joined[worker - 2] = server.members[worker - 2].process;
        Queue(index, worker).push_back({.kind = Message::kJoinReply, .view = server.view->view()});
      }
    }
  }

  void OnWorkerOf(int index, int rank, const Message& message) {
    Server& server = servers_[index];
    ReplicaView& view = *server.view;
    switch (message.kind) {
      case Message::kJoin:
        if (view.is_proposing()) {
          server.held[rank] = {view.proposed(), message.process};
          Propose(index, rank, message.process);
        } else if (view.role() == ReplicaRole::kPrimary) {
          AnswerJoin(index, rank, message.process);
        } else {
          Queue(index, Id(rank)).push_back({.kind = Message::kNotPrimary});
        }
        break;
      case Message::kPromise:
        if (!server.joined.contains(rank) && !server.held.contains(rank)) break;
        if (!server.IsNewest(rank, message.process)) break;
        if (view.Promise(rank, message.promised)) BeginView(index);
        break;
      case Message::kPush:
        if (!server.joined.contains(rank) || view.role() != ReplicaRole::kPrimary) break;
        server.pushes.insert(message.number);  // a second time changes nothing
        Append(index, rank, message.number, {.kind = Message::kRecord, .base = {message.number}});
        break;
      case Message::kClosed:
        server.held.erase(rank);
        server.joined.erase(rank);
        std::erase_if(server.waiting, [&](const auto& entry) { return entry.second.first == Id(rank); });
        view.Withdraw(rank);
        break;
      default:
        FAIL() << "no worker's message";
    }
  }

  void WorkerActs(int rank) {
    Worker& worker = workers_[rank];
    if (worker.connected) {
      // What does not answer is left.
      if (worker.joined || random_.NextBelow(8) != 0) return;
      Break(worker.server, Id(rank));
      Queue(worker.server, Id(rank)).clear();
      worker.connected = false;
      worker.server = 1 - worker.server;
      return;
    }
    if (!Queue(worker.server, Id(rank)).empty() || !Queue(Id(rank), worker.server).empty()) {
      worker.server = 1 - worker.server;
      return;
    }
    worker.connected = true;
    Queue(Id(rank), worker.server).push_back({.kind = Message::kJoin, .process = worker.process});
  }

  void OnReply(int rank, int from, const Message& message) {
    Worker& worker = workers_[rank];
    const auto leave = [&] {
      Break(from, Id(rank));
      Queue(from, Id(rank)).clear();
      worker.connected = worker.joined = false;
      worker.server = 1 - from;
    };
    if (from != worker.server || !worker.connected) return;
    switch (message.kind) {
      case Message::kJoinReply:
        if (!worker.ballot.Follow(message.view, from)) return leave();
        if (std::exchange(worker.joined, true)) break;  // only another view
        Queue(Id(rank), from).push_back({.kind = Message::kPush, .number = PushOf(rank)});
        break;
      case Message::kNotPrimary:
        worker.ballot.GiveBack(message.promised, from);
        return leave();
      case Message::kPushReply:
        if (message.number == PushOf(rank)) ++worker.next;
        Queue(Id(rank), from).push_back({.kind = Message::kPush, .number = PushOf(rank)});
        break;
      case Message::kPropose:
        if (worker.ballot.Promise(message.view, from, message.number,
                                  message.role == ReplicaRole::kPrimary ? from : 1 - from, message.is_sole)) {
          Queue(Id(rank), from)
              .push_back({.kind = Message::kPromise, .promised = message.view, .process = worker.process});
        }
        break;
      case Message::kClosed:
        leave();
        Queue(Id(rank), from).clear();
        break;
      default:
        FAIL() << "no server's message";
    }
  }

  RandomStream random_;
  ReplicaVotes votes_;
  Server servers_[2];
  std::vector<Worker> workers_;
  std::map<std::pair<int, int>, std::deque<Message>> queues_;
  std::set<uint64_t> acknowledged_;
  bool is_lost_ = false;
};

uint64_t SeedCount() {
  const char* const seeds = std::getenv("MUSTER_SIMULATION_SEEDS");
  return seeds != nullptr ? std::stoul(seeds) : 400;
}

TEST(ReplicaViewSimulation, NothingAcknowledgedIsLostWhateverBreaks) {
  int survived = 0;
  for (uint64_t seed = 1; seed <= SeedCount(); ++seed) {
    SCOPED_TRACE(absl::StrFormat("seed %d", seed));
    Simulation simulation(seed, 1 + static_cast<int>(seed % 4), /*one_host=*/seed % 2 == 0);
    simulation.Run(4000, /*faults=*/40, /*gently=*/false);
    if (testing::Test::HasFatalFailure()) return;
    survived += simulation.is_lost() ? 0 : 1;
  }
  EXPECT_GT(survived, 0);
}

TEST(ReplicaViewSimulation, OneFaultAtATimeStopsNobody) {
  for (uint64_t seed = 1; seed <= SeedCount(); ++seed) {
    SCOPED_TRACE(absl::StrFormat("seed %d", seed));
    Simulation simulation(seed, 1 + static_cast<int>(seed % 4), /*one_host=*/seed % 2 == 0);
    simulation.Run(8000, /*faults=*/20, /*gently=*/true);
    if (testing::Test::HasFatalFailure()) return;
    ASSERT_FALSE(simulation.is_lost()) << simulation.Describe();
    const size_t before = simulation.acknowledged();
    simulation.Run(2000, /*faults=*/0, /*gently=*/true);
    ASSERT_TRUE(simulation.IsWhole()) << simulation.Describe();
    ASSERT_GT(simulation.acknowledged(), before);
  }
}

}  // namespace
}  // namespace muster
