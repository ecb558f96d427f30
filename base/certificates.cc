#include "base/certificates.h"

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <memory>

#include "base/openssl.h"

namespace muster {
namespace {

constexpr long kDaySeconds = 24 * 60 * 60;

absl::Status OpenSslError(const std::string& what) { return Internal("%s: %s", what, TakeOpenSslError()); }

bool AddExtension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, OpenSslFree<X509_EXTENSION_free>> extension(
      X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

// A certificate for `key` with everything but extensions and signature.
OpenSslCertificate NewCertificate(const std::string& common_name, EVP_PKEY* key) {
  OpenSslCertificate certificate(X509_new());
  unsigned char serial[16];
  if (certificate == nullptr || RAND_bytes(serial, sizeof serial) != 1) return nullptr;
  serial[0] &= 0x7f;  // serial numbers are positive
  const std::unique_ptr<BIGNUM, OpenSslFree<BN_free>> number(BN_bin2bn(serial, sizeof serial, nullptr));
  X509_NAME* name = X509_get_subject_name(certificate.get());
  const bool ok =
      X509_set_version(certificate.get(), 2) == 1 &&
      BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate.get())) != nullptr &&
      X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -kDaySeconds) != nullptr &&
      X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 365 * kDaySeconds) != nullptr &&
      X509_set_pubkey(certificate.get(), key) == 1 &&
      X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8,
                                 reinterpret_cast<const unsigned char*>(common_name.c_str()), -1, -1, 0) == 1;
  return ok ? std::move(certificate) : nullptr;
}

std::string TakeText(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return std::string(data, size);
}

absl::StatusOr<Certificate> ToPem(X509* certificate, EVP_PKEY* key) {
  const OpenSslBio certificate_bio(BIO_new(BIO_s_mem())), key_bio(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_X509(certificate_bio.get(), certificate) != 1 ||
      PEM_write_bio_PKCS8PrivateKey(key_bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return OpenSslError("write PEM");
  }
  return Certificate{.certificate_pem = TakeText(certificate_bio.get()), .key_pem = TakeText(key_bio.get())};
}

}  // namespace

absl::StatusOr<Certificate> MakeAuthority(const std::string& name) {
  const OpenSslKey key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpenSslError("make a key");
  const OpenSslCertificate certificate =
      NewCertificate(name.substr(0, 64), key.get());  // ub-common-name of RFC 5280
  if (certificate == nullptr ||
      X509_set_issuer_name(certificate.get(), X509_get_subject_name(certificate.get())) != 1 ||
      !AddExtension(certificate.get(), certificate.get(), NID_basic_constraints,
                    "critical,CA:TRUE,pathlen:0") ||
      !AddExtension(certificate.get(), certificate.get(), NID_key_usage, "critical,keyCertSign") ||
      !AddExtension(certificate.get(), certificate.get(), NID_subject_key_identifier, "hash") ||
      X509_sign(certificate.get(), key.get(), EVP_sha256()) == 0) {
    return OpenSslError("make a certificate authority");
  }
  return ToPem(certificate.get(), key.get());
}

absl::StatusOr<Certificate> IssueCertificate(const Certificate& authority, const std::string& dns_name) {
  const OpenSslBio authority_bio = ReadingBio(authority.certificate_pem);
  const OpenSslBio authority_key_bio = ReadingBio(authority.key_pem);
  const OpenSslCertificate issuer(PEM_read_bio_X509(authority_bio.get(), nullptr, nullptr, nullptr));
  const OpenSslKey issuer_key(PEM_read_bio_PrivateKey(authority_key_bio.get(), nullptr, nullptr, nullptr));
  if (issuer == nullptr || issuer_key == nullptr) return OpenSslError("read the certificate authority");
  const OpenSslKey key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpenSslError("make a key");
  const OpenSslCertificate certificate = NewCertificate(dns_name, key.get());
  if (certificate == nullptr ||
      X509_set_issuer_name(certificate.get(), X509_get_subject_name(issuer.get())) != 1 ||
      !AddExtension(certificate.get(), issuer.get(), NID_basic_constraints, "critical,CA:FALSE") ||
      !AddExtension(certificate.get(), issuer.get(), NID_key_usage, "critical,digitalSignature") ||
      !AddExtension(certificate.get(), issuer.get(), NID_ext_key_usage, "serverAuth,clientAuth") ||
      !AddExtension(certificate.get(), issuer.get(), NID_subject_alt_name, "DNS:" + dns_name) ||
      !AddExtension(certificate.get(), issuer.get(), NID_authority_key_identifier, "keyid") ||
      X509_sign(certificate.get(), issuer_key.get(), EVP_sha256()) == 0) {
    return OpenSslError("issue a certificate for " + dns_name);
  }
  return ToPem(certificate.get(), key.get());
}

}  // namespace muster
