// DisplayThread: a run is shown by a thread of its own. A terminal that is held, or a pager that nobody
// scrolls, does not keep the runner from its work.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "launcher/run_observer.h"

namespace muster {

class DisplayThread final : public RunObserver {
 public:
  /// What is kept for a display that is behind: so many bytes of logs, of which the rest is left out with a
  /// notice. Where there are so many things, of views only the newest is kept, of an upload only its end and
  /// its problems, and no figures of the training.
  static constexpr size_t kMostLogBytes = size_t{64} << 20;
  static constexpr size_t kMostThings = 1000;

  /// `display` belongs to the thread until this is destroyed.
  explicit DisplayThread(RunObserver& display);
  /// Waits until everything has been shown, as long as that takes.
  ~DisplayThread() override;

  // None of these waits for the display.
  void OnView(const reconcile::View& view) override;
  void OnHostFacts(const HostFacts& facts) override;
  void OnUpload(const UploadStep& step) override;
  void OnNotice(const std::string& text) override;
  void OnLog(const std::string& task, const std::string& bytes, bool last) override;
  void OnTraining(const TrainingPoint& point) override;

 private:
  struct Thing {
    std::function<void()> show;
    size_t log_bytes = 0;
  };

  void Add(Thing thing);
  void AddLocked(Thing thing);
  std::optional<Thing> Next();
  void Run();

  RunObserver& display_;
  std::mutex mutex_;  // guards the following
  std::condition_variable changed_;
  std::deque<Thing> things_;
  size_t log_bytes_ = 0;                    // in them
  std::map<std::string, uint64_t> missed_;  // by task: bytes left out since it was last shown
  std::optional<reconcile::View> view_;     // the newest, where there was no room
  bool is_last_ = false;                    // nothing more is added
  std::thread thread_;                      // the last member: it uses the others
};

}  // namespace muster
