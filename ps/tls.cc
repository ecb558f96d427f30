#include "ps/tls.h"

namespace muster {

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const std::optional<TlsIdentity>& tls) {
  if (!tls) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = tls->ca_pem;
  options.pem_key_cert_pairs.push_back({tls->key_pem, tls->certificate_pem});
  return grpc::SslServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const std::optional<TlsIdentity>& tls) {
  if (!tls) return grpc::InsecureChannelCredentials();
  return grpc::SslCredentials({.pem_root_certs = tls->ca_pem,
                               .pem_private_key = tls->key_pem,
                               .pem_cert_chain = tls->certificate_pem});
}

absl::Status CheckPeer(const grpc::AuthContext& peer, TaskId task) {
  const std::string expected = TlsName(task);
  std::string found;
  for (const grpc::string_ref& name : peer.FindPropertyValues("x509_subject_alternative_name")) {
    if (std::string(name.data(), name.size()) == expected) return absl::OkStatus();
    found += (found.empty() ? "" : ", ") + std::string(name.data(), name.size());
  }
  return PermissionDenied("a client with the certificate of '%s' says that it is %s", found, TaskName(task));
}

}  // namespace muster
