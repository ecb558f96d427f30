// A job as manifests for Kubernetes: the same tasks and the same training, as pods. Contacts nothing.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "inventory/job.h"

namespace muster {

enum class KubernetesFormat : uint8_t {
  kJobs,   // an Indexed Job for each role and a headless Service: no operator is needed
  kTfJob,  // Kubeflow's, whose operator sets TF_CONFIG
};

struct KubernetesOptions {
  std::string image;  // with the trainer, or the program, in it
  KubernetesFormat format = KubernetesFormat::kJobs;
};

struct KubernetesManifests {
  std::string yaml;                // what is to be known of it stands in comments at its head
  std::vector<std::string> notes;  // the same for people: what is not as under muster, a sentence each
};

/// Where images have what muster would have sent: an image that a build context makes, or one like it.
inline constexpr char kImageDataFolder[] = "/data";           // of the job's `data`, MUSTER_DATA there
inline constexpr char kImageTrainerFolder[] = "/opt/muster";  // its bin/ is in PATH
inline constexpr char kImageJobFolder[] = "/job";             // of `files`; programs start there

/// InvalidArgument: a name of the job that is none in Kubernetes, an image that is none, what a TFJob cannot
/// express.
absl::StatusOr<KubernetesManifests> MakeKubernetesManifests(const Job& job, const KubernetesOptions& options);

}  // namespace muster
