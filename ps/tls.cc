#include "ps/tls.h"

#include "base/file.h"

namespace muster {

absl::StatusOr<TlsIdentity> LoadTlsDirectory(const std::filesystem::path& folder) {
  TlsIdentity tls;
  const std::pair<const char*, std::string*> files[] = {
      {"ca.pem", &tls.ca_pem}, {"cert.pem", &tls.certificate_pem}, {"key.pem", &tls.key_pem}};
  for (const auto& [name, text] : files) {
    auto bytes = ReadFile(folder / name, 1 << 20);
    if (!bytes.ok()) return InvalidArgument("--tls_dir: %s", std::string(bytes.status().message()));
    if (bytes->find("-----BEGIN ") == std::string::npos) {
      return InvalidArgument("--tls_dir: %s is no PEM file", (folder / name).string());
    }
    *text = *std::move(bytes);
  }
  return tls;
}

std::string TlsName(TaskId task) { return absl::StrFormat("%s-%d", RoleName(task.role), task.index); }

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
