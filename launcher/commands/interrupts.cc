#include "launcher/commands/interrupts.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>

namespace muster {
namespace {

std::atomic<int> interrupts = 0;
int interrupt_fd = -1;
pid_t only_from = 0;  // 0: from anybody

void OnInterrupt(int number, siginfo_t* info, void*) {
  if (only_from != 0 && info->si_pid != only_from) return;
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
  action.sa_sigaction = OnInterrupt;
  action.sa_flags = SA_SIGINFO;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(number, &action, nullptr);
}

void StopWhenInterrupted(RunOptions* options) {
  CatchInterrupts();
  options->interrupts = &interrupts;
  options->interrupt_fd = interrupt_fd;
}

void TakeInterruptsOnlyFrom(pid_t process) { only_from = process; }

int Interrupts() { return interrupts.load(); }

}  // namespace muster
