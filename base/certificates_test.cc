#include "base/certificates.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/process.h"

namespace muster {
namespace {

CommandResult OpenSsl(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "openssl");
  auto result = RunCommand({.argv = arguments}, Now() + std::chrono::seconds(30));
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *result : CommandResult{};
}

TEST(Certificates, OpensslVerifiesThemAgainstTheirAuthorityAndNoOther) {
  TemporaryDirectory folder;
  const auto path = [&](const std::string& name) { return (folder.path() / name).string(); };
  const auto authority = MakeAuthority("muster job a"), other = MakeAuthority("muster job b");
  ASSERT_TRUE(authority.ok() && other.ok());
  const auto certificate = IssueCertificate(*authority, "worker-2");
  ASSERT_TRUE(certificate.ok()) << certificate.status();
  ASSERT_TRUE(WriteFileAtomically(path("ca"), authority->certificate_pem).ok());
  ASSERT_TRUE(WriteFileAtomically(path("other"), other->certificate_pem).ok());
  ASSERT_TRUE(WriteFileAtomically(path("cert"), certificate->certificate_pem).ok());
  for (const std::string purpose : {"sslserver", "sslclient"}) {
    const auto good = OpenSsl({"verify", "-purpose", purpose, "-x509_strict", "-verify_hostname", "worker-2",
                               "-CAfile", path("ca"), path("cert")});
    EXPECT_EQ(good.exit_code, 0) << good.stderr_text;
  }
  EXPECT_NE(
      OpenSsl({"verify", "-verify_hostname", "worker-1", "-CAfile", path("ca"), path("cert")}).exit_code, 0);
  EXPECT_NE(OpenSsl({"verify", "-CAfile", path("other"), path("cert")}).exit_code, 0);
}

}  // namespace
}  // namespace muster
