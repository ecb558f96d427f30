#include "launcher/display_thread.h"

#include <utility>

#include "launcher/terminal.h"

namespace muster {

DisplayThread::DisplayThread(RunObserver& display) : display_(display), thread_([this] { Run(); }) {}

DisplayThread::~DisplayThread() {
  {
    const std::lock_guard lock(mutex_);
    is_last_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

void DisplayThread::AddLocked(Thing thing) {
  log_bytes_ += thing.log_bytes;
  things_.push_back(std::move(thing));
  changed_.notify_all();
}

void DisplayThread::Add(Thing thing) {
  const std::lock_guard lock(mutex_);
  AddLocked(std::move(thing));
}

void DisplayThread::OnView(const reconcile::View& view) {
  const std::lock_guard lock(mutex_);
  if (things_.size() >= kMostThings) {
    view_ = view;
    return;
  }
  view_.reset();  // it is older
  AddLocked({.show = [this, view] { display_.OnView(view); }});
}

void DisplayThread::OnHostFacts(const HostFacts& facts) {
  Add({.show = [this, facts] { display_.OnHostFacts(facts); }});
}

void DisplayThread::OnUpload(const UploadStep& step) {
  const bool is_on_the_way = step.problem.empty() && step.sent_bytes < step.total_bytes;
  const std::lock_guard lock(mutex_);
  if (is_on_the_way && things_.size() >= kMostThings) return;
  AddLocked({.show = [this, step] { display_.OnUpload(step); }});
}

void DisplayThread::OnNotice(const std::string& text) {
  Add({.show = [this, text] { display_.OnNotice(text); }});
}

void DisplayThread::OnTraining(const TrainingPoint& point) {
  const std::lock_guard lock(mutex_);
  if (things_.size() < kMostThings) AddLocked({.show = [this, point] { display_.OnTraining(point); }});
}

void DisplayThread::OnLog(const std::string& task, const std::string& bytes, bool last) {
  const std::lock_guard lock(mutex_);
  uint64_t& missed = missed_[task];
  const bool fits = log_bytes_ + bytes.size() <= kMostLogBytes;
  if (!fits) missed += bytes.size();
  if (missed > 0 && (fits || last)) {
    // The line that was cut off ends here.
    AddLocked({.show = [this, task, text = SkippedLogText(task, std::exchange(missed, 0))] {
      display_.OnLog(task, "", /*last=*/true);
      display_.OnNotice(text);
    }});
  }
  if (fits) {
    AddLocked({.show = [this, task, bytes, last] { display_.OnLog(task, bytes, last); },
               .log_bytes = bytes.size()});
  }
}

std::optional<DisplayThread::Thing> DisplayThread::Next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !things_.empty() || view_ || is_last_; });
  if (things_.empty() && view_) {
    return Thing{.show = [this, view = *std::exchange(view_, std::nullopt)] { display_.OnView(view); }};
  }
  if (things_.empty()) return std::nullopt;
  Thing next = std::move(things_.front());
  things_.pop_front();
  log_bytes_ -= next.log_bytes;
  return next;
}

void DisplayThread::Run() {
  while (const std::optional<Thing> next = Next()) next->show();
}

}  // namespace muster
