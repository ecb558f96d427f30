// Ctrl-C, TERM and HUP for commands that drive a job.
#pragma once

#include <sys/types.h>

#include "launcher/runner.h"

namespace muster {

/// From now on they end nothing by themselves. INT and HUP count only where whoever started this process does
/// not have them ignored, as nohup does.
void CatchInterrupts();

/// Whether this one ends muster, or would: TERM in any case. Before CatchInterrupts.
bool CountsAsInterrupt(int signal_number);

/// The same, and the first of them stops the job that runs with these options, the next one gives up. For
/// commands that have started what they drive, or are to stop it; others leave the job alone when they are
/// interrupted.
void StopWhenInterrupted(RunOptions* options);

/// From now on SIGTERM ends this process at once; but while commands of others go through its connections
/// (RunOptions::guests, which are there as long as the process is), it only leaves the job that runs with
/// these options.
void LeaveWhenTerminated(RunOptions* options);

/// From now on it ends the process in any case.
void EndWhenTerminated();

/// From now on all that CatchInterrupts has caught end the process: nothing is left but to say something.
void EndWhenInterrupted();

/// From now on only those count that this process sends, or its own. Before there are other threads.
void TakeInterruptsOnlyFrom(pid_t process);

/// How many have come.
int Interrupts();

}  // namespace muster
