// SHA-256, the name under which programs and data are stored on hosts.
#pragma once

#include <openssl/sha.h>

#include <cstddef>
#include <string>

namespace muster {

/// Incremental SHA-256. One thread at a time.
class Sha256 {
 public:
  Sha256();
  void Update(const void* data, size_t size);
  /// 64 lower-case hexadecimal digits; call once, last.
  std::string HexDigest();

 private:
  SHA256_CTX context_;
};

std::string Sha256Hex(const std::string& bytes);

}  // namespace muster
