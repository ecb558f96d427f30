// What a run shows.
#pragma once

#include <string>

#include "launcher/host_session.h"
#include "launcher/reconciler/messages.h"
#include "launcher/training_progress.h"

namespace muster {

/// Called from the runner's thread only.
class RunObserver {
 public:
  virtual ~RunObserver() = default;
  /// After each change of any state.
  virtual void OnView(const reconcile::View& view) = 0;
  virtual void OnHostFacts(const HostFacts& facts) = 0;
  virtual void OnUpload(const UploadStep& step) = 0;
  /// There is something that people should know.
  virtual void OnNotice(const std::string& text) = 0;
  /// What a task printed.
  virtual void OnLog(const std::string& task, const std::string& bytes, bool last) = 0;
  /// A line of the chief's metrics has come.
  virtual void OnTraining(const TrainingPoint& point) = 0;
};

}  // namespace muster
