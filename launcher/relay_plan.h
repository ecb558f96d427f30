// RelayPlan: how a content comes to many hosts while the launcher sends it to few of them. The first hosts
// get it from the launcher, and pass it on; whoever has got it passes it on, too. A pure core: events and a
// time go in, actions come out.
//
//   launcher --> a, b       the seeds
//   a --> c, d   b --> e, f
//   c --> g, h   ...        as many servers as those who wait need
//
// A host that no other can reach gets it from the launcher; so do all, where hosts do not reach each other.
#pragma once

#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"

namespace muster {

class RelayPlan {
 public:
  /// So many are sent a content by the launcher before others wait for one of them.
  static constexpr int kSeeds = 2;
  /// So many fetch from one server at a time.
  static constexpr int kFetchesAtOnce = 2;
  /// After so many fetches that have failed, and none that has not, hosts do not reach each other.
  static constexpr int kHopelessFailures = 3;
  /// From two bad servers a host goes to the launcher.
  static constexpr int kBadSources = 2;
  /// When nobody has got the content for so long, one more gets it from the launcher; the next one after
  /// twice that, and so on: those on their way may be behind slow links.
  static constexpr Duration kPatience = std::chrono::seconds(10);

  struct Action {
    enum class Kind {
      kUpload,      // the launcher sends `content` to `host`
      kFetch,       // `host` gets it from `source`
      kServe,       // `host` begins to pass on what it has
      kEndServing,  // and ends it
    };
    Kind kind;
    std::string host;
    std::string content;  // kUpload, kFetch
    std::string source;   // kFetch
    bool operator==(const Action&) const = default;
  };
  using Actions = std::vector<Action>;

  /// The host needs the content. It will be told from where, now or later.
  Actions Want(const std::string& host, const std::string& content, TimePoint now);
  /// It has it: it was sent it, has fetched it, or had it before.
  Actions Has(const std::string& host, const std::string& content, TimePoint now);
  /// It needs it no more, or could not be sent it.
  Actions GiveUp(const std::string& host, const std::string& content, TimePoint now);
  /// It could not fetch it, by its server's fault, and still needs it.
  Actions FetchFailed(const std::string& host, const std::string& content, TimePoint now);
  /// Its server is there.
  Actions Serving(const std::string& host, TimePoint now);
  /// It could not be started, or has died.
  Actions NotServing(const std::string& host, TimePoint now);
  /// The host is not connected any more: it needs nothing, serves nobody, and all that was known is
  /// forgotten.
  Actions Gone(const std::string& host, TimePoint now);
  Actions Tick(TimePoint now);
  /// When Tick may have something to do.
  std::optional<TimePoint> deadline() const;

 private:
  enum class Server { kNone, kStarting, kServing, kUnable };
  struct Host {
    Server server = Server::kNone;
    int fetches = 0;   // from its server, under way
    int failures = 0;  // of fetches from it, since one went well
    bool is_proven = false;
    std::set<std::string> bad_sources;  // from which it could not fetch
  };
  struct Content {
    std::deque<std::string> waiting;
    std::map<std::string, std::string> under_way;  // to each host, from which; "": from the launcher
    std::set<std::string> holders;
    Duration patience = kPatience;
    std::optional<TimePoint> upload_after;  // while somebody waits
  };

  /// Nothing is on its way to the host any more. Whether it was waiting or that was.
  bool EndTransfer(Content& content, const std::string& host, std::string* source);
  Actions Assign(TimePoint now);
  void AssignFetches(const std::string& id, Content& content, Actions* actions);
  void AssignUploads(const std::string& id, Content& content, TimePoint now, Actions* actions);
  void StartServers(Content& content, Actions* actions);
  void EndServers(Actions* actions);
  const std::string* SourceFor(const Content& content, const std::string& host);
  bool GoesToLauncher(const std::string& host);
  bool NeedsLauncher(const Content& content, const std::string& host);

  std::map<std::string, Host> hosts_;
  std::map<std::string, Content> contents_;
  int failures_ = 0;   // of all fetches
  int successes_ = 0;  // likewise
};

}  // namespace muster
