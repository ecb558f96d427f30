#include "launcher/commands/interrupts.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>

namespace muster {
namespace {

std::atomic<int> interrupts = 0;
int interrupt_fd = -1;

void OnInterrupt(int number) {
  // A terminal that closes may say so twice, and means it once.
  if (number == SIGHUP && interrupts.load() > 0) return;
  interrupts.fetch_add(1);
  const uint64_t one = 1;
  (void)!::write(interrupt_fd, &one, sizeof one);
}

}  // namespace

void CatchInterrupts() {
  if (interrupt_fd >= 0) return;
  interrupt_fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  struct sigaction action {};
  action.sa_handler = OnInterrupt;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(number, &action, nullptr);
}

void StopWhenInterrupted(RunOptions* options) {
  CatchInterrupts();
  options->interrupts = &interrupts;
  options->interrupt_fd = interrupt_fd;
}

int Interrupts() { return interrupts.load(); }

}  // namespace muster
