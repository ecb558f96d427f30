#include "agent/facts.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/statvfs.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/process.h"

namespace muster {
namespace {

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

// "2.36" of "...stable release version 2.36.\n", or of "Version 1.2.3\n".
std::string VersionAfter(const std::string& text, std::string_view key) {
  const size_t at = text.find(key);
  if (at == std::string::npos) return "";
  const size_t start = at + key.size();
  const size_t end = text.find_first_not_of("0123456789.", start);
  std::string version = text.substr(start, end == std::string::npos ? end : end - start);
  while (!version.empty() && version.back() == '.') version.pop_back();
  return version;
}

// The agent is static, so its own libc says nothing about the host's. glibc's library holds its version as
// text, and lies beside the loader that every dynamic program names; nothing has to be run. musl's loader is
// its library, and says its version when run.
std::string HostLibc(const std::string& architecture) {
  for (const char* loader : {"/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"}) {
    std::error_code error;
    const std::filesystem::path real = std::filesystem::canonical(loader, error);
    if (error) continue;
    const std::string bytes = ReadFile(real.parent_path() / "libc.so.6", uint64_t{64} << 20).value_or("");
    if (const std::string version = VersionAfter(bytes, "release version "); !version.empty())
      return "glibc " + version;
  }
  const std::string musl = "/lib/ld-musl-" + architecture + ".so.1";
  std::error_code error;
  if (!std::filesystem::exists(musl, error)) return "";
  const absl::StatusOr<CommandResult> result = RunCommand({.argv = {musl}}, Now() + std::chrono::seconds(2));
  const std::string version = result.ok() ? VersionAfter(result->stderr_text, "Version ") : "";
  return version.empty() ? "" : "musl " + version;
}

void AddInstructionSets([[maybe_unused]] agent::FactsResponse& facts) {
#if defined(__x86_64__)
  // Asks cpuid, and the operating system (xgetbv) where it has to save the registers.
  __builtin_cpu_init();
  if (__builtin_cpu_supports("sse4.2")) facts.add_instruction_sets("sse4_2");
  if (__builtin_cpu_supports("avx2")) facts.add_instruction_sets("avx2");
  if (__builtin_cpu_supports("avx512f")) facts.add_instruction_sets("avx512f");
  if (__builtin_cpu_supports("avx512vnni")) facts.add_instruction_sets("avx512_vnni");
  if (__builtin_cpu_supports("amx-tile")) facts.add_instruction_sets("amx_tile");
#endif
}

void AddAddresses(agent::FactsResponse& facts) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_LOOPBACK) || !(entry->ifa_flags & IFF_UP))
      continue;
    char text[INET6_ADDRSTRLEN] = "";
    if (entry->ifa_addr->sa_family == AF_INET) {
      const auto& address = reinterpret_cast<const sockaddr_in*>(entry->ifa_addr)->sin_addr;
      const bool link_local = (ntohl(address.s_addr) >> 16) == 0xa9fe;  // 169.254/16, RFC 3927
      if (!link_local) ::inet_ntop(AF_INET, &address, text, sizeof text);
    } else if (entry->ifa_addr->sa_family == AF_INET6) {
      const auto& address = reinterpret_cast<const sockaddr_in6*>(entry->ifa_addr)->sin6_addr;
      if (!IN6_IS_ADDR_LINKLOCAL(&address)) ::inet_ntop(AF_INET6, &address, text, sizeof text);
    }
    if (text[0] != '\0') facts.add_addresses(text);
  }
  ::freeifaddrs(list);
}

}  // namespace

agent::FactsResponse CollectFacts(const std::filesystem::path& root) {
  agent::FactsResponse facts;
  facts.set_machine_id(FirstLine(ReadFile("/etc/machine-id", 4096).value_or("")));
  utsname names{};
  if (::uname(&names) == 0) {
    facts.set_hostname(names.nodename);
    facts.set_architecture(names.machine);
  }
  facts.set_libc(HostLibc(facts.architecture()));
  AddInstructionSets(facts);
  // cpu_set_t holds 1024 processors; a larger machine needs a larger set.
  cpu_set_t processors[16];
  if (::sched_getaffinity(0, sizeof processors, processors) == 0) {
    facts.set_processors(CPU_COUNT_S(sizeof processors, processors));
  }
  struct sysinfo memory {};
  if (::sysinfo(&memory) == 0) facts.set_memory_bytes(uint64_t{memory.totalram} * memory.mem_unit);
  struct statvfs disk {};
  if (::statvfs(root.c_str(), &disk) == 0) facts.set_disk_free_bytes(uint64_t{disk.f_bavail} * disk.f_frsize);
  AddAddresses(facts);
  facts.set_root(root.string());
  facts.set_wall_micros(WallTimeMicros());
  return facts;
}

}  // namespace muster
