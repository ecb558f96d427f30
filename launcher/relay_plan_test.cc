#include "launcher/relay_plan.h"

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <queue>
#include <tuple>

#include "base/random.h"

namespace muster {
namespace {

using std::chrono::seconds;
using Kind = RelayPlan::Action::Kind;

std::string Line(const RelayPlan::Action& action) {
  switch (action.kind) {
    case Kind::kUpload:
      return "upload " + action.content + " to " + action.host;
    case Kind::kFetch:
      return action.host + " fetches " + action.content + " from " + action.source;
    case Kind::kServe:
      return action.host + " serves";
    case Kind::kEndServing:
      return action.host + " ends serving";
  }
  return "?";
}

std::string Lines(const RelayPlan::Actions& actions) {
  return absl::StrJoin(actions, ", ", [](std::string* out, const RelayPlan::Action& action) {
    absl::StrAppend(out, Line(action));
  });
}

class RelayPlanTest : public testing::Test {
 protected:
  std::string Want(const std::string& host) { return Lines(plan_.Want(host, "x", now_)); }
  std::string Has(const std::string& host) { return Lines(plan_.Has(host, "x", now_)); }
  std::string Failed(const std::string& host) { return Lines(plan_.FetchFailed(host, "x", now_)); }
  std::string Serving(const std::string& host) { return Lines(plan_.Serving(host, now_)); }
  std::string NotServing(const std::string& host) { return Lines(plan_.NotServing(host, now_)); }
  std::string Gone(const std::string& host) { return Lines(plan_.Gone(host, now_)); }

  RelayPlan plan_;
  TimePoint now_;
};

TEST_F(RelayPlanTest, TheFirstTwoPassItOn) {
  EXPECT_EQ(Want("a"), "upload x to a");
  EXPECT_EQ(Want("b"), "upload x to b");
  for (const std::string host : {"c", "d", "e", "f", "g"}) EXPECT_EQ(Want(host), "");
  EXPECT_EQ(Has("a"), "a serves");
  EXPECT_EQ(Serving("a"), "c fetches x from a, d fetches x from a");
  EXPECT_EQ(Has("b"), "b serves");
  EXPECT_EQ(Serving("b"), "e fetches x from b, f fetches x from b");
  // For the last one there is room, as soon as somebody is done: no third server for it alone but while it
  // waits.
  EXPECT_EQ(Has("c"), "g fetches x from a");
  EXPECT_EQ(Has("d"), "");
  EXPECT_EQ(Has("g") + Has("e"), "");
  EXPECT_EQ(Has("f"), "a ends serving, b ends serving");
}

TEST_F(RelayPlanTest, OneThatComesLaterGetsItFromThoseWhoHaveIt) {
  Has("a");
  Has("b");
  Has("c");
  EXPECT_EQ(Want("d"), "a serves");
  EXPECT_EQ(Serving("a"), "d fetches x from a");
  EXPECT_EQ(Has("d"), "a ends serving");
}

TEST_F(RelayPlanTest, AloneOrWithOneOtherNobodyWaits) {
  EXPECT_EQ(Want("a"), "upload x to a");
  EXPECT_EQ(Has("a"), "");
  EXPECT_EQ(Want("b"), "upload x to b");
  EXPECT_EQ(Has("b"), "");
}

TEST_F(RelayPlanTest, WhoHasFetchedFromOneBadServerTriesAnotherAndThenTheLauncher) {
  Has("a");
  Has("b");
  Has("c");
  EXPECT_EQ(Want("d"), "a serves");
  EXPECT_EQ(Serving("a"), "d fetches x from a");
  EXPECT_EQ(Failed("d"), "c serves");
  EXPECT_EQ(Serving("c"), "d fetches x from c");
  EXPECT_EQ(Failed("d"), "upload x to d");
}

TEST_F(RelayPlanTest, WhereHostsDoNotReachEachOtherTheLauncherSendsToAll) {
  Want("a");
  Want("b");
  for (const std::string host : {"c", "d", "e", "f"}) Want(host);
  Has("a");
  EXPECT_EQ(Serving("a"), "c fetches x from a, d fetches x from a");
  Has("b");
  EXPECT_EQ(Serving("b"), "e fetches x from b, f fetches x from b");
  EXPECT_EQ(Failed("c"), "");
  EXPECT_EQ(Failed("e"), "e fetches x from a, c fetches x from b");
  EXPECT_EQ(Failed("d"), "upload x to d");
  EXPECT_EQ(Failed("f"), "upload x to f");
  EXPECT_EQ(Want("g"), "upload x to g");
}

TEST_F(RelayPlanTest, AServerThatCannotStartOrGoesIsReplaced) {
  Want("a");
  Want("b");
  Want("c");
  EXPECT_EQ(Has("a"), "a serves");
  EXPECT_EQ(NotServing("a"), "upload x to c");
  EXPECT_EQ(Want("d"), "");
  EXPECT_EQ(Has("b"), "b serves");
  EXPECT_EQ(Serving("b"), "d fetches x from b");
  EXPECT_EQ(Gone("b"), "");
  EXPECT_EQ(Failed("d"), "upload x to d");
}

TEST_F(RelayPlanTest, WhoIsGoneLeavesRoom) {
  Want("a");
  Want("b");
  for (const std::string host : {"c", "d", "e"}) Want(host);
  EXPECT_EQ(Gone("a"), "upload x to c");
  Has("b");
  EXPECT_EQ(Serving("b"), "d fetches x from b, e fetches x from b");
  EXPECT_EQ(Want("f"), "");
  EXPECT_EQ(Gone("d"), "f fetches x from b");
}

TEST_F(RelayPlanTest, BehindSlowLinksOneMoreIsSentItEachTime) {
  Want("a");
  Want("b");
  EXPECT_EQ(plan_.deadline(), std::nullopt);
  for (const std::string host : {"c", "d", "e"}) Want(host);
  ASSERT_EQ(plan_.deadline(), now_ + RelayPlan::kPatience);
  now_ += seconds(9);
  EXPECT_EQ(Lines(plan_.Tick(now_)), "");
  now_ += seconds(1);
  EXPECT_EQ(Lines(plan_.Tick(now_)), "upload x to c");
  EXPECT_EQ(plan_.deadline(), now_ + 2 * RelayPlan::kPatience);
  // That somebody has it begins it anew.
  now_ += seconds(15);
  EXPECT_EQ(Has("c"), "c serves");
  EXPECT_EQ(plan_.deadline(), now_ + RelayPlan::kPatience);
  EXPECT_EQ(Serving("c"), "d fetches x from c, e fetches x from c");
  EXPECT_EQ(plan_.deadline(), std::nullopt);
}

// --- simulation
// ------------------------------------------------------------------------------------------------------

// Hosts whose sessions do what they are told, in times by chance; links, servers and hosts may fail.
class RelayWorld {
 public:
  struct Result {
    int uploads = 0;
    int most_from_one = 0;
    bool all_have_it = true;
    bool servers_left = false;
    TimePoint end;
  };
  struct Chances {
    double host_dies = 0, fetch_fails = 0, server_fails = 0, unreachable = 0;
  };

  RelayWorld(uint64_t seed, int hosts, Chances chances) : random_(seed), chances_(chances) {
    for (int i = 0; i < hosts; ++i) {
      const std::string name = absl::StrCat("h", i);
      hosts_[name].is_unreachable = random_.NextDouble() < chances_.unreachable;
      At(random_.NextDouble(), [this, name] { Connect(name); });
    }
  }

  Result Run() {
    for (int steps = 0; steps < 100'000; ++steps) {
      const auto deadline = plan_.deadline();
      if (events_.empty() && !deadline) break;
      if (deadline && (events_.empty() || *deadline < events_.top().time)) {
        now_ = std::max(now_, *deadline);
        Do(plan_.Tick(now_));
        continue;
      }
      const Event event = events_.top();
      events_.pop();
      now_ = event.time;
      event.what();
    }
    for (const auto& [name, host] : hosts_) {
      result_.all_have_it &= host.has_it;
      result_.servers_left |= host.serves;
    }
    result_.end = now_;
    return result_;
  }

 private:
  struct Host {
    bool is_unreachable = false, has_it = false, serves = false;
    int fetches = 0;
    int life = 0;  // counts connections: what was begun in an earlier one does not end in this one
  };
  struct Event {
    TimePoint time;
    uint64_t order;
    std::function<void()> what;
    bool operator<(const Event& other) const {
      return std::tie(time, order) > std::tie(other.time, other.order);
    }
  };

  void At(double in_seconds, std::function<void()> what) {
    events_.push({now_ + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(in_seconds)),
                  ++order_, std::move(what)});
  }

  void Connect(const std::string& name) {
    Host& host = hosts_[name];
    ++host.life;
    Do(host.has_it ? plan_.Has(name, "x", now_) : plan_.Want(name, "x", now_));
    if (random_.NextDouble() < chances_.host_dies) {
      At(3 * random_.NextDouble(), [this, name, life = host.life] { Die(name, life); });
    }
  }

  void Die(const std::string& name, int life) {
    Host& host = hosts_[name];
    if (host.life != life) return;
    ++host.life;
    host.serves = false;
    Do(plan_.Gone(name, now_));
    At(5 * random_.NextDouble(), [this, name] { Connect(name); });
  }

  void Do(const RelayPlan::Actions& actions) {
    for (const RelayPlan::Action& action : actions) Do(action);
  }

  void Do(const RelayPlan::Action& action) {
    Host& host = hosts_[action.host];
    const auto later = [&, life = host.life](double in_seconds, std::function<void(Host&)> what) {
      At(in_seconds, [this, life, name = action.host, what = std::move(what)] {
        if (hosts_[name].life == life) what(hosts_[name]);
      });
    };
    const std::string name = action.host;
    if (action.kind == Kind::kUpload) {
      EXPECT_FALSE(host.has_it);
      ++result_.uploads;
      later(1 + random_.NextDouble(), [this, name](Host& it) {
        it.has_it = true;
        Do(plan_.Has(name, "x", now_));
      });
    } else if (action.kind == Kind::kServe) {
      EXPECT_TRUE(host.has_it && !host.serves);
      const bool fails = random_.NextDouble() < chances_.server_fails;
      later(0.1 * random_.NextDouble(), [this, name, fails](Host& it) {
        it.serves = !fails;
        Do(fails ? plan_.NotServing(name, now_) : plan_.Serving(name, now_));
      });
    } else if (action.kind == Kind::kEndServing) {
      EXPECT_TRUE(host.serves);
      host.serves = false;
    } else {
      Host& source = hosts_[action.source];
      EXPECT_TRUE(source.has_it && source.serves && !host.has_it);
      result_.most_from_one = std::max(result_.most_from_one, ++source.fetches);
      const bool fails = source.is_unreachable || random_.NextDouble() < chances_.fetch_fails;
      const int life = host.life;
      At(1 + random_.NextDouble(),
         [this, name, life, from = action.source, source_life = source.life, fails] {
           Host& it = hosts_[name];
           Host& server = hosts_[from];
           --server.fetches;
           if (it.life != life) return;
           it.has_it = !fails && server.life == source_life && server.serves;
           Do(it.has_it ? plan_.Has(name, "x", now_) : plan_.FetchFailed(name, "x", now_));
         });
    }
  }

  RandomStream random_;
  const Chances chances_;
  RelayPlan plan_;
  TimePoint now_;
  uint64_t order_ = 0;
  std::map<std::string, Host> hosts_;
  std::priority_queue<Event> events_;
  Result result_;
};

TEST(RelaySimulation, WithoutFaultsTheLauncherSendsToTwo) {
  for (const int hosts : {1, 2, 3, 10, 100, 300}) {
    for (uint64_t seed = 0; seed < 5; ++seed) {
      const RelayWorld::Result result = RelayWorld(seed, hosts, {}).Run();
      EXPECT_TRUE(result.all_have_it);
      EXPECT_FALSE(result.servers_left);
      EXPECT_EQ(result.uploads, std::min(hosts, RelayPlan::kSeeds));
      EXPECT_LE(result.most_from_one, RelayPlan::kFetchesAtOnce);
      // Each holder makes two more of a transfer's time, of at most 2.1 s.
      EXPECT_LE(ToSeconds(result.end - TimePoint()), 1 + 2.1 * (2 + std::log2(hosts))) << hosts;
    }
  }
}

TEST(RelaySimulation, WithFaultsAllGetItAndNoServerIsLeft) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    RandomStream random(seed, 1);
    const int hosts = 1 + static_cast<int>(random.NextBelow(30));
    const RelayWorld::Chances chances{
        .host_dies = 0.3 * random.NextDouble(),
        .fetch_fails = 0.5 * random.NextDouble(),
        .server_fails = 0.5 * random.NextDouble(),
        .unreachable = random.NextBelow(3) == 0 ? 1 : 0.5 * random.NextDouble()};
    const RelayWorld::Result result = RelayWorld(seed, hosts, chances).Run();
    EXPECT_TRUE(result.all_have_it) << seed;
    EXPECT_FALSE(result.servers_left) << seed;
    EXPECT_LE(result.most_from_one, RelayPlan::kFetchesAtOnce + 30) << seed;
  }
}

}  // namespace
}  // namespace muster
