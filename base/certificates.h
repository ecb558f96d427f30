// The certificate authority of one job, and the certificates of its tasks: X.509, P-256, PEM.
//
// A certificate names a task and not an address, so that a task that moves keeps it. Valid from a day ago,
// because the clocks of hosts differ, for a year.
#pragma once

#include <string>

#include "base/status.h"

namespace muster {

struct Certificate {
  std::string certificate_pem;
  std::string key_pem;  // secret: files of it have mode 0600
};

/// A new self-signed authority. `name` is for people ("muster job mnist-4f9k2").
absl::StatusOr<Certificate> MakeAuthority(const std::string& name);

/// A certificate for a task, as server and as client, with `dns_name` as subject alternative name.
absl::StatusOr<Certificate> IssueCertificate(const Certificate& authority, const std::string& dns_name);

}  // namespace muster
