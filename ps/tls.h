// Mutual TLS for job traffic. A certificate names a task ("worker-2"), not an address, so that a task that
// moves keeps it.
#pragma once

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <filesystem>
#include <memory>
#include <optional>
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

/// Plain ones without an identity. A server demands a certificate of the job from every client. A client must
/// set GRPC_SSL_TARGET_NAME_OVERRIDE_ARG to the TlsName of the server that it expects.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const std::optional<TlsIdentity>& tls);
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const std::optional<TlsIdentity>& tls);

/// PermissionDenied unless the peer's certificate names `task`.
absl::Status CheckPeer(const grpc::AuthContext& peer, TaskId task);

}  // namespace muster
