#include "cluster/tls_identity.h"

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

}  // namespace muster
