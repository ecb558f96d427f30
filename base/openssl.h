// OpenSSL's objects, owned, and what it says went wrong.
#pragma once

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/x509.h>

#include <memory>
#include <string>

namespace muster {

/// Frees with a function of the library.
template <auto free>
struct OpenSslFree {
  template <typename T>
  void operator()(T* pointer) const {
    free(pointer);
  }
};
using OpenSslKey = std::unique_ptr<EVP_PKEY, OpenSslFree<EVP_PKEY_free>>;
using OpenSslCertificate = std::unique_ptr<X509, OpenSslFree<X509_free>>;
using OpenSslBio = std::unique_ptr<BIO, OpenSslFree<BIO_free_all>>;

/// Reads `text`, which lives longer.
inline OpenSslBio ReadingBio(const std::string& text) {
  return OpenSslBio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

/// The oldest of this thread's errors; none are left.
inline std::string TakeOpenSslError() {
  char text[256] = "no reason given";
  if (const unsigned long error = ERR_get_error(); error != 0) ERR_error_string_n(error, text, sizeof text);
  ERR_clear_error();
  return text;
}

}  // namespace muster
