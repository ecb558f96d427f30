// Detachment: a command that begins in the foreground and goes on in the background, as `ssh -f` does.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "base/file.h"
#include "base/status.h"

namespace muster {

class Detachment {
 public:
  /// Interrupts are the parent's to take, as long as it waits: it hands each to the child once, or ends
  /// itself with 128 and the signal's number.
  enum class Interrupted { kTellsChild, kEndsParent };

  /// Forks; there must be no other thread yet. Returns in the child. In the parent, null, once the child has
  /// detached, with the *exit_code that it says, or has ended before, with its own. Until then the child does
  /// not outlive it.
  static absl::StatusOr<std::unique_ptr<Detachment>> Fork(int* exit_code,
                                                          Interrupted interrupted = Interrupted::kTellsChild);

  /// Where both outputs go from Detach on. Fails as the kernel says, with the path.
  absl::Status OpenLog(const std::filesystem::path& path);

  /// From now on this process outlives the parent, is of no terminal and of no session but its own, takes no
  /// interrupts, and SIGTERM ends it at once. It goes on printing where the parent does.
  void Outlive();

  /// From now on this process belongs to no terminal, and to no session but its own, and SIGTERM ends it at
  /// once. Then calls `detached`, and lets the parent end, with this exit code. Nothing of that if it
  /// has been interrupted: what it does then is for the parent's exit status. Once, after OpenLog. Any
  /// thread.
  void Detach(const std::function<void()>& detached, int exit_code = 0);

 private:
  static void TakeNoInterrupts();

  explicit Detachment(UniqueFd parent) : parent_(std::move(parent)) {}
  UniqueFd parent_;  // of a pipe: a byte says that this process has detached, and the parent's exit code
  UniqueFd log_;
};

}  // namespace muster
