// The low-level functions are deprecated in favour of EVP, which would link every algorithm of OpenSSL into
// the static agent (9 MB for one hash).
#define OPENSSL_SUPPRESS_DEPRECATED
#include "base/sha256.h"

namespace muster {

Sha256::Sha256() { SHA256_Init(&context_); }

void Sha256::Update(const void* data, size_t size) { SHA256_Update(&context_, data, size); }

std::string Sha256::HexDigest() {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256_Final(digest, &context_);
  std::string hex;
  for (const unsigned char byte : digest) {
    hex += "0123456789abcdef"[byte >> 4];
    hex += "0123456789abcdef"[byte & 15];
  }
  return hex;
}

std::string Sha256Hex(const std::string& bytes) {
  Sha256 hash;
  hash.Update(bytes.data(), bytes.size());
  return hash.HexDigest();
}

}  // namespace muster
