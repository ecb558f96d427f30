#include "launcher/commands/interrupts.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>

#include "launcher/transport/guest_commands.h"

namespace muster {
namespace {

std::atomic<int> interrupts = 0;
int interrupt_fd = -1;
pid_t only_from = 0;  // 0: from anybody

std::atomic<bool> leaves = false;
std::atomic<const std::atomic<int>*> guests = nullptr;

void OnTermination(int) {
  if (guests.load()->load() == 0) {
    EndWhenTerminated();
    (void)::raise(SIGTERM);  // comes when this returns
    return;
  }
  leaves = true;
  const uint64_t one = 1;
  (void)!::write(interrupt_fd, &one, sizeof one);
}

void OnInterrupt(int number, siginfo_t* info, void*) {
  // This process itself says so for the terminal, when it reads a passphrase there.
  if (only_from != 0 && info->si_pid != only_from && info->si_pid != ::getpid()) return;
  // A terminal that closes may say so twice, and means it once.
  if (number == SIGHUP && interrupts.load() > 0) return;
  interrupts.fetch_add(1);
  const uint64_t one = 1;
  (void)!::write(interrupt_fd, &one, sizeof one);
}

void OpenInterruptFd() {
  if (interrupt_fd < 0) interrupt_fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
}

}  // namespace

bool CountsAsInterrupt(int signal_number) {
  struct sigaction action {};
  return signal_number == SIGTERM || ::sigaction(signal_number, nullptr, &action) != 0 ||
         action.sa_handler != SIG_IGN;
}

void CatchInterrupts() {
  if (interrupt_fd >= 0) return;
  OpenInterruptFd();
  struct sigaction action {};
  action.sa_sigaction = OnInterrupt;
  action.sa_flags = SA_SIGINFO;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    if (CountsAsInterrupt(number)) ::sigaction(number, &action, nullptr);
  }
}

void StopWhenInterrupted(RunOptions* options) {
  CatchInterrupts();
  options->interrupts = &interrupts;
  options->interrupt_fd = interrupt_fd;
}

void LeaveWhenTerminated(RunOptions* options) {
  OpenInterruptFd();
  guests = &options->guests->count();
  options->leave = &leaves;
  options->interrupt_fd = interrupt_fd;
  struct sigaction action {};
  action.sa_handler = OnTermination;
  action.sa_flags = SA_RESTART;
  ::sigaction(SIGTERM, &action, nullptr);
}

void EndWhenInterrupted() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    if (CountsAsInterrupt(number)) ::signal(number, SIG_DFL);
  }
}

void EndWhenTerminated() { ::signal(SIGTERM, SIG_DFL); }

void TakeInterruptsOnlyFrom(pid_t process) { only_from = process; }

int Interrupts() { return interrupts.load(); }

}  // namespace muster
