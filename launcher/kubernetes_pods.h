// What the pods of a job run in Kubernetes: from a job file, as the launcher would start the same tasks.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "inventory/job.h"
#include "launcher/kubernetes.h"

namespace muster {

inline constexpr int kPodPort = 2222;  // each pod has an address of its own
inline constexpr char kCompletionIndex[] = "JOB_COMPLETION_INDEX";

/// A folder that is not of the image.
struct PodFolder {
  std::string name;
  std::string path;         // there
  std::string host_folder;  // of the node; empty: one that is made with the pod and goes with it
};

/// The pods of one role. What they run may name variables as Kubernetes expands them: $(NAME).
struct RolePods {
  ReplicaRole role = ReplicaRole::kWorker;
  std::string name;  // "mnist-worker"; Kubernetes adds the index
  int count = 0;
  std::vector<std::string> argv;
  std::vector<std::pair<std::string, std::string>> environment;
  bool names_index = false;  // the environment does: the index has to be defined before it
  int gpus = 0;              // of each
  std::vector<PodFolder> folders;
  bool keeps_files = false;   // it goes on from what it wrote, so that only its pod can start it again
  bool retries_each = false;  // failures are counted for each of them by itself, by a Job
};

struct JobPods {
  std::string name;             // of the Service, or the TFJob
  std::vector<RolePods> roles;  // ps, chief, worker; those that the job has
  std::string chief;            // the RolePods::name of whose first pod writes the result; empty: none does
  bool logs_result = false;     // it is too large for a termination message
  std::vector<std::string> notes;
};

/// Of each pod of the role. Who computes on GPUs under muster because its hosts have them needs one of its
/// own.
int GpusOf(const Job& job, ReplicaRole role);

/// InvalidArgument: as MakeKubernetesManifests.
absl::StatusOr<JobPods> MakePods(const Job& job, const KubernetesOptions& options);

}  // namespace muster
