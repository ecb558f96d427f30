#include "launcher/content_relay.h"

#include <utility>

namespace muster {

void ContentRelay::Join(const std::string& host, Take take) {
  const std::lock_guard lock(mutex_);
  sessions_[host] = std::move(take);
}

void ContentRelay::Leave(const std::string& host) {
  const std::lock_guard lock(mutex_);
  sessions_.erase(host);
  Dispatch(plan_.Gone(host, Now()));
}

void ContentRelay::Close() {
  const std::lock_guard lock(mutex_);
  sessions_.clear();
}

void ContentRelay::Want(const std::string& host, const std::string& content) {
  const std::lock_guard lock(mutex_);
  Dispatch(plan_.Want(host, content, Now()));
}

void ContentRelay::Has(const std::string& host, const std::string& content) {
  const std::lock_guard lock(mutex_);
  Dispatch(plan_.Has(host, content, Now()));
}

void ContentRelay::GiveUp(const std::string& host, const std::string& content) {
  const std::lock_guard lock(mutex_);
  Dispatch(plan_.GiveUp(host, content, Now()));
}

void ContentRelay::FetchFailed(const std::string& host, const std::string& content) {
  const std::lock_guard lock(mutex_);
  Dispatch(plan_.FetchFailed(host, content, Now()));
}

void ContentRelay::Serving(const ContentSource& source) {
  const std::lock_guard lock(mutex_);
  sources_[source.host] = source;
  Dispatch(plan_.Serving(source.host, Now()));
}

void ContentRelay::NotServing(const std::string& host) {
  const std::lock_guard lock(mutex_);
  Dispatch(plan_.NotServing(host, Now()));
}

void ContentRelay::Gone(const std::string& host) {
  const std::lock_guard lock(mutex_);
  Dispatch(plan_.Gone(host, Now()));
}

void ContentRelay::NoteProgress() {
  const std::lock_guard lock(mutex_);
  progress_at_ = Now();
}

TimePoint ContentRelay::progress_at() {
  const std::lock_guard lock(mutex_);
  return progress_at_;
}

void ContentRelay::Tick() {
  const std::lock_guard lock(mutex_);
  const TimePoint now = Now();
  if (now >= plan_.deadline().value_or(TimePoint::max())) Dispatch(plan_.Tick(now));
}

std::optional<TimePoint> ContentRelay::deadline() {
  const std::lock_guard lock(mutex_);
  return plan_.deadline();
}

void ContentRelay::Dispatch(const RelayPlan::Actions& actions) {
  for (const RelayPlan::Action& action : actions) {
    const auto session = sessions_.find(action.host);
    if (session == sessions_.end()) continue;
    const auto source = sources_.find(action.source);
    session->second({.kind = action.kind,
                     .content = action.content,
                     .source = source == sources_.end() ? ContentSource{} : source->second});
  }
}

}  // namespace muster
