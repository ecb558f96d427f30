// Mutual TLS for what goes by gRPC.
#pragma once

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <optional>

#include "base/status.h"
#include "cluster/tls_identity.h"

namespace muster {

/// Plain ones without an identity. A server demands a certificate of the job from every client. A client must
/// set GRPC_SSL_TARGET_NAME_OVERRIDE_ARG to the TlsName of the server that it expects.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const std::optional<TlsIdentity>& tls);
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const std::optional<TlsIdentity>& tls);

/// PermissionDenied unless the peer's certificate names `task`.
absl::Status CheckPeer(const grpc::AuthContext& peer, TaskId task);

}  // namespace muster
