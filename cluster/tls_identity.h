// What a task proves with who it is, in job traffic: a certificate that names the task ("worker-2"), not an
// address, so that a task that moves keeps it.
#pragma once

#include <filesystem>
#include <string>

#include "base/status.h"
#include "cluster/cluster_spec.h"

namespace muster {

struct TlsIdentity {
  std::string ca_pem;           // ca.pem: who signs the tasks of this job
  std::string certificate_pem;  // cert.pem
  std::string key_pem;          // key.pem
};

/// Reads the three files of --tls_dir. InvalidArgument names a file that is missing or is no PEM.
absl::StatusOr<TlsIdentity> LoadTlsDirectory(const std::filesystem::path& folder);

/// "worker-2": what the certificate of a task says, as DNS name.
std::string TlsName(TaskId task);

}  // namespace muster
