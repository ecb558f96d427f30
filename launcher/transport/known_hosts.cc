#include "launcher/transport/known_hosts.h"

#include <absl/strings/ascii.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>
#include <sys/file.h>

#include <algorithm>
#include <sstream>
#include <thread>

#include "base/file.h"

namespace muster {
namespace {

constexpr uint64_t kMaxFileBytes = 16 << 20;
constexpr char kHashed[] = "|1|";  // salt|hash, both in base64

// Empty if it is not valid.
std::string DecodeBase64(const std::string& base64) {
  if (base64.empty() || base64.size() % 4 != 0) return "";
  std::string bytes(base64.size() / 4 * 3, '\0');
  const int n =
      EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()),
                      reinterpret_cast<const unsigned char*>(base64.data()), static_cast<int>(base64.size()));
  if (n < 0) return "";
  const size_t padding = base64.ends_with("==") ? 2 : base64.ends_with("=") ? 1 : 0;
  bytes.resize(n - padding);
  return bytes;
}

bool IsPlainName(const std::string& name) {
  return !name.empty() && name.find_first_of("|*?!@# \t\r\n,") == std::string::npos;
}

std::string HashOf(const std::string& name, const std::string& salt) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  HMAC(EVP_sha1(), salt.data(), static_cast<int>(salt.size()),
       reinterpret_cast<const unsigned char*>(name.data()), name.size(), digest, &size);
  return {reinterpret_cast<const char*>(digest), size};
}

std::string LockPath(const std::filesystem::path& path) { return path.string() + ".lock"; }

absl::StatusOr<UniqueFd> OpenLock(const std::filesystem::path& path) {
  if (path.has_parent_path()) MUSTER_RETURN_IF_ERROR(MakeDirectories(path.parent_path(), 0700));
  UniqueFd lock(::open(LockPath(path).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock.valid()) return ErrnoError(errno, LockPath(path));
  return lock;
}

}  // namespace

std::string HostKey::Fingerprint() const {
  const std::string key = DecodeBase64(base64);
  if (key.empty()) return "";
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest);
  unsigned char text[64];
  std::string encoded(reinterpret_cast<char*>(text), EVP_EncodeBlock(text, digest, sizeof digest));
  while (encoded.ends_with('=')) encoded.pop_back();
  return "SHA256:" + encoded;
}

absl::StatusOr<KnownHosts> KnownHosts::Load(const std::filesystem::path& path) {
  absl::StatusOr<std::string> text = ReadFile(path, kMaxFileBytes);
  if (absl::IsNotFound(text.status())) return KnownHosts();
  MUSTER_RETURN_IF_ERROR(text.status());
  return Parse(*text, path.string());
}

absl::StatusOr<KnownHosts> KnownHosts::Parse(const std::string& text, const std::string& path) {
  KnownHosts known;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    std::istringstream words(line);
    std::string names, name;
    HostKey key;
    if (!(words >> names) || names.starts_with('#')) continue;
    if (names.starts_with('@')) {
      return InvalidArgument("%s:%d: %s is not supported here; remove the line", path, number, names);
    }
    if (!(words >> key.type >> key.base64) || key.Fingerprint().empty()) {
      return InvalidArgument("%s:%d: not a host key; expected `name type base64-key`", path, number);
    }
    std::istringstream list(names);
    while (std::getline(list, name, ',')) {
      Entry entry{.name = name, .salt = "", .hash = "", .key = key};
      if (name.starts_with(kHashed)) {
        const size_t bar = name.find('|', sizeof kHashed - 1);
        entry.name.clear();
        entry.salt = DecodeBase64(name.substr(sizeof kHashed - 1, bar - (sizeof kHashed - 1)));
        entry.hash = bar == std::string::npos ? "" : DecodeBase64(name.substr(bar + 1));
      }
      const bool is_hashed = !entry.salt.empty() && entry.hash.size() == SHA_DIGEST_LENGTH;
      if (!is_hashed && !IsPlainName(entry.name)) {
        return InvalidArgument(
            "%s:%d: `%s`: not a name, or a pattern, which is not supported here; write the name that the "
            "host has in the inventory",
            path, number, name);
      }
      known.entries_.push_back(std::move(entry));
    }
  }
  return known;
}

bool KnownHosts::Names(const Entry& entry, const std::string& name) {
  const std::string lower = absl::AsciiStrToLower(name);
  if (!entry.name.empty()) return absl::AsciiStrToLower(entry.name) == lower;
  // ssh-keygen hashes names in lower case; another program may not.
  return HashOf(lower, entry.salt) == entry.hash || HashOf(name, entry.salt) == entry.hash;
}

std::vector<HostKey> KnownHosts::KeysOf(const std::string& name) const {
  std::vector<HostKey> keys;
  for (const Entry& entry : entries_) {
    if (Names(entry, name)) keys.push_back(entry.key);
  }
  return keys;
}

HostKeyVerdict KnownHosts::Check(const std::string& name, const HostKey& key) const {
  const std::vector<HostKey> keys = KeysOf(name);
  if (keys.empty()) return HostKeyVerdict::kUnknown;
  return std::find(keys.begin(), keys.end(), key) != keys.end() ? HostKeyVerdict::kKnown
                                                                : HostKeyVerdict::kChanged;
}

absl::Status CheckCanAccept(const std::filesystem::path& path) { return OpenLock(path).status(); }

absl::Status AcceptHostKey(const std::filesystem::path& path, const std::string& name, const HostKey& key,
                           TimePoint deadline) {
  if (!IsPlainName(name))
    return InvalidArgument("`%s` cannot stand in %s as a host's name", name, path.string());
  const std::string lock_path = LockPath(path);
  MUSTER_ASSIGN_OR_RETURN(const UniqueFd lock, OpenLock(path));
  // flock has no timeout. The lock is held for one small write, so asking again soon is cheap, and the
  // deadline holds.
  while (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return ErrnoError(errno, lock_path);
    if (Now() >= deadline) return DeadlineExceeded("%s is locked by another process", lock_path);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  MUSTER_ASSIGN_OR_RETURN(const KnownHosts known, KnownHosts::Load(path));
  switch (known.Check(name, key)) {
    case HostKeyVerdict::kKnown:
      return absl::OkStatus();
    case HostKeyVerdict::kChanged:
      return FailedPrecondition(
          "%s: %s has another key for it already (%s); the new one (%s) is not accepted", name, path.string(),
          known.KeysOf(name).front().Fingerprint(), key.Fingerprint());
    case HostKeyVerdict::kUnknown:
      break;
  }
  std::string text;
  if (absl::StatusOr<std::string> old = ReadFile(path, kMaxFileBytes); old.ok()) text = *std::move(old);
  if (!text.empty() && !text.ends_with('\n')) text += '\n';
  text += name + " " + key.type + " " + key.base64 + "\n";
  return WriteFileAtomically(path, text, 0600);
}

}  // namespace muster
