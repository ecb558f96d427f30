#include "launcher/relay_plan.h"

#include <algorithm>

namespace muster {

RelayPlan::Actions RelayPlan::Want(const std::string& host, const std::string& content, TimePoint now) {
  Content& wanted = contents_[content];
  EndTransfer(wanted, host, nullptr);
  wanted.holders.erase(host);
  wanted.waiting.push_back(host);
  return Assign(now);
}

RelayPlan::Actions RelayPlan::Has(const std::string& host, const std::string& content, TimePoint now) {
  Content& had = contents_[content];
  std::string source;
  EndTransfer(had, host, &source);
  if (!source.empty()) {
    ++successes_;
    hosts_[source].failures = 0;
    hosts_[source].is_proven = true;
  }
  had.holders.insert(host);
  had.patience = kPatience;
  had.upload_after.reset();
  return Assign(now);
}

RelayPlan::Actions RelayPlan::GiveUp(const std::string& host, const std::string& content, TimePoint now) {
  EndTransfer(contents_[content], host, nullptr);
  return Assign(now);
}

RelayPlan::Actions RelayPlan::FetchFailed(const std::string& host, const std::string& content,
                                          TimePoint now) {
  Content& wanted = contents_[content];
  Actions actions;
  if (std::string source; EndTransfer(wanted, host, &source) && !source.empty()) {
    ++failures_;
    hosts_[host].bad_sources.insert(source);
    Host& bad = hosts_[source];
    if (++bad.failures >= kHopelessFailures && !bad.is_proven && bad.server == Server::kServing) {
      bad.server = Server::kUnable;
      actions.push_back({.kind = Action::Kind::kEndServing, .host = source});
    }
  }
  wanted.waiting.push_front(host);
  const Actions more = Assign(now);
  actions.insert(actions.end(), more.begin(), more.end());
  return actions;
}

RelayPlan::Actions RelayPlan::Serving(const std::string& host, TimePoint now) {
  hosts_[host].server = Server::kServing;
  return Assign(now);
}

RelayPlan::Actions RelayPlan::NotServing(const std::string& host, TimePoint now) {
  hosts_[host].server = Server::kUnable;
  return Assign(now);
}

RelayPlan::Actions RelayPlan::Gone(const std::string& host, TimePoint now) {
  for (auto& [id, content] : contents_) {
    EndTransfer(content, host, nullptr);
    content.holders.erase(host);
  }
  // Those who fetch from it find out by themselves.
  if (const auto found = hosts_.find(host); found != hosts_.end()) {
    const int fetches = found->second.fetches;
    found->second = Host{.fetches = fetches};
  }
  return Assign(now);
}

RelayPlan::Actions RelayPlan::Tick(TimePoint now) { return Assign(now); }

std::optional<TimePoint> RelayPlan::deadline() const {
  std::optional<TimePoint> first;
  for (const auto& [id, content] : contents_) {
    if (content.upload_after && (!first || *content.upload_after < *first)) first = content.upload_after;
  }
  return first;
}

bool RelayPlan::EndTransfer(Content& content, const std::string& host, std::string* source) {
  if (std::erase(content.waiting, host) > 0) return true;
  const auto found = content.under_way.find(host);
  if (found == content.under_way.end()) return false;
  if (!found->second.empty()) --hosts_[found->second].fetches;
  if (source != nullptr) *source = found->second;
  content.under_way.erase(found);
  return true;
}

RelayPlan::Actions RelayPlan::Assign(TimePoint now) {
  Actions actions;
  for (auto& [id, content] : contents_) {
    AssignFetches(id, content, &actions);
    AssignUploads(id, content, now, &actions);
    StartServers(content, &actions);
  }
  EndServers(&actions);
  return actions;
}

void RelayPlan::AssignFetches(const std::string& id, Content& content, Actions* actions) {
  int room = 0;
  for (const std::string& holder : content.holders) {
    const Host& server = hosts_[holder];
    if (server.server == Server::kServing) room += std::max(kFetchesAtOnce - server.fetches, 0);
  }
  for (auto it = content.waiting.begin(); it != content.waiting.end() && room > 0;) {
    const std::string* const source = SourceFor(content, *it);
    if (source == nullptr) {
      ++it;
      continue;
    }
    --room;
    ++hosts_[*source].fetches;
    content.under_way[*it] = *source;
    actions->push_back({.kind = Action::Kind::kFetch, .host = *it, .content = id, .source = *source});
    it = content.waiting.erase(it);
  }
}

// The one with the least to do.
const std::string* RelayPlan::SourceFor(const Content& content, const std::string& host) {
  if (GoesToLauncher(host)) return nullptr;
  const std::string* best = nullptr;
  int least = kFetchesAtOnce;
  const std::set<std::string>& bad = hosts_[host].bad_sources;
  for (const std::string& holder : content.holders) {
    const Host& server = hosts_[holder];
    if (server.server != Server::kServing || server.fetches >= least || bad.contains(holder)) continue;
    best = &holder;
    least = server.fetches;
  }
  return best;
}

void RelayPlan::AssignUploads(const std::string& id, Content& content, TimePoint now, Actions* actions) {
  const auto upload = [&](std::deque<std::string>::iterator it) {
    content.under_way[*it] = "";
    actions->push_back({.kind = Action::Kind::kUpload, .host = *it, .content = id, .source = ""});
    return content.waiting.erase(it);
  };
  for (auto it = content.waiting.begin(); it != content.waiting.end();) {
    it = NeedsLauncher(content, *it) ? upload(it) : it + 1;
  }
  if (content.upload_after && now >= *content.upload_after && !content.waiting.empty()) {
    upload(content.waiting.begin());
    content.patience *= 2;
    content.upload_after.reset();
  }
  if (content.waiting.empty()) {
    content.upload_after.reset();
  } else if (!content.upload_after) {
    content.upload_after = now + content.patience;
  }
}

bool RelayPlan::GoesToLauncher(const std::string& host) {
  return hosts_[host].bad_sources.size() >= kBadSources ||
         (successes_ == 0 && failures_ >= kHopelessFailures);
}

// There is no other from which it could get the content, now or when that has it.
bool RelayPlan::NeedsLauncher(const Content& content, const std::string& host) {
  if (GoesToLauncher(host)) return true;
  const std::set<std::string>& bad = hosts_[host].bad_sources;
  int sources = 0;
  const auto count = [&](const std::string& other) {
    sources += hosts_[other].server != Server::kUnable && !bad.contains(other);
    return sources >= kSeeds;
  };
  for (const auto& [other, source] : content.under_way) {
    if (count(other)) return false;
  }
  for (const std::string& holder : content.holders) {
    if (count(holder)) return false;
    // One that is known to serve is worth as much as two that have yet to get it.
    const Host& server = hosts_[holder];
    if (server.is_proven && server.server != Server::kUnable && !bad.contains(holder)) return false;
  }
  return true;
}

void RelayPlan::StartServers(Content& content, Actions* actions) {
  size_t wanted = content.waiting.size(), places = 0;
  for (const auto& [host, source] : content.under_way) wanted += !source.empty();
  for (const std::string& holder : content.holders) {
    const Server server = hosts_[holder].server;
    if (server == Server::kStarting || server == Server::kServing) places += kFetchesAtOnce;
  }
  const auto start = [&](const std::string& holder) {
    hosts_[holder].server = Server::kStarting;
    actions->push_back({.kind = Action::Kind::kServe, .host = holder});
    places += kFetchesAtOnce;
  };
  for (const std::string& holder : content.holders) {
    if (places >= wanted) break;
    if (hosts_[holder].server == Server::kNone) start(holder);
  }
  // Somebody waits for whom all these servers are bad.
  for (const std::string& waiter : content.waiting) {
    const std::set<std::string>& bad = hosts_[waiter].bad_sources;
    if (bad.empty()) continue;
    const std::string* another = nullptr;
    bool has_one = false;
    for (const std::string& holder : content.holders) {
      if (bad.contains(holder)) continue;
      const Server server = hosts_[holder].server;
      has_one |= server == Server::kStarting || server == Server::kServing;
      if (server == Server::kNone) another = &holder;
    }
    if (!has_one && another != nullptr) start(*another);
  }
}

// As long as somebody is getting what it has, it may be needed again.
void RelayPlan::EndServers(Actions* actions) {
  for (auto& [name, host] : hosts_) {
    if (host.server != Server::kServing || host.fetches > 0) continue;
    const bool is_needed = std::any_of(contents_.begin(), contents_.end(), [&](const auto& each) {
      const Content& content = each.second;
      return content.holders.contains(name) && !(content.waiting.empty() && content.under_way.empty());
    });
    if (is_needed) continue;
    host.server = Server::kNone;
    actions->push_back({.kind = Action::Kind::kEndServing, .host = name});
  }
}

}  // namespace muster
