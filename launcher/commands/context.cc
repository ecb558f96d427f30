#include "launcher/commands/context.h"

#include <absl/strings/ascii.h>
#include <absl/strings/escaping.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>

#include "base/stdout.h"
#include "inventory/host_selection.h"
#include "launcher/data_sets.h"
#include "launcher/transport/known_hosts.h"
#include "launcher/transport/shell_quote.h"
#include "launcher/transport/ssh_auth.h"
#include "launcher/transport/ssh_gateway.h"

namespace muster {
namespace {

constexpr char kUsualInventory[] = "inventory.yaml";

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

// For commands that a message tells the user to type: as short as it can be.
std::string ShellWord(const std::string& word) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) != 0 || std::strchr("/._-+=:,@%", c) != nullptr;
  };
  return !word.empty() && std::all_of(word.begin(), word.end(), plain) ? word : QuoteWord(word);
}

// The path of a flag that stands in such a command.
absl::Status CheckPath(const char* flag, const std::string& path) {
  if (std::none_of(path.begin(), path.end(), absl::ascii_iscntrl)) return absl::OkStatus();
  return InvalidArgument(
      "%s \"%s\": the path holds a control character, which no shell can be given safely; rename it", flag,
      absl::Utf8SafeCEscape(path));
}

// What is wrong with this file is no host's fault, and is said before any is contacted.
absl::Status CheckKnownHosts(const std::filesystem::path& path, bool accept_new) {
  absl::Status status = KnownHosts::Load(path).status();
  if (status.ok() && accept_new) status = CheckCanAccept(path);
  return status.ok() ? status : InvalidArgument("the file of hosts' keys: %s", std::string(status.message()));
}

}  // namespace

std::optional<Duration> FromSeconds(double seconds) {
  if (seconds <= 0) return std::nullopt;
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

absl::StatusOr<Places> FindPlaces() {
  const std::string home = Variable("HOME");
  if (home.empty()) return InvalidArgument("HOME is not set");
  const std::string folder = Variable("MUSTER_HOME"), inventory = Variable("MUSTER_INVENTORY");
  return Places{.home = home,
                .folder = folder.empty() ? home + "/.muster" : folder,
                .inventory = inventory.empty() ? kUsualInventory : inventory};
}

absl::StatusOr<CommandContext> CommandContext::Create(const CommandFlags& flags) {
  MUSTER_ASSIGN_OR_RETURN(const Places places, FindPlaces());
  CommandContext context(flags, JobStore(places.folder));
  std::string& inventory = context.flags_.inventory;
  if (inventory.empty()) inventory = places.inventory;
  MUSTER_RETURN_IF_ERROR(CheckPath("--inventory", inventory));
  MUSTER_RETURN_IF_ERROR(CheckPath("--known-hosts", flags.known_hosts));
  MUSTER_ASSIGN_OR_RETURN(context.installation_, FindInstallation());
  MUSTER_ASSIGN_OR_RETURN(context.agent_, LoadAgentProgram(context.installation_));
  context.ssh_ = SshOptionsFromEnvironment();
  context.ssh_.gateways = std::make_shared<SshGateways>();
  std::optional<std::string> password;
  if (flags.ask_password) {
    password = AskAtTerminal("Password of the accounts on hosts and jump hosts: ");
    if (!password || password->empty()) {
      return InvalidArgument(
          "--ask-password: no answer; it is asked for at the terminal that muster runs at");
    }
  }
  context.secrets_ = std::make_shared<LoginSecrets>(AskAtTerminal, std::move(password));
  context.ssh_.secrets = context.secrets_;
  if (!flags.known_hosts.empty()) context.ssh_.known_hosts = flags.known_hosts;
  // A job's own file may be another one (connect_options).
  if (flags.connects_to_inventory || !flags.known_hosts.empty())
    MUSTER_RETURN_IF_ERROR(CheckKnownHosts(context.ssh_.known_hosts, flags.accept_new));
  context.ssh_.accept_new_keys = flags.accept_new;
  context.home_ = places.home;
  context.data_folder_ = Variable("MUSTER_DATA");
  context.data_cache_ = DataCache(Variable("MUSTER_CACHE"), Variable("XDG_CACHE_HOME"), places.home);
  return context;
}

ConnectOptions CommandContext::ConnectOptionsFor(const std::string& inventory) const {
  ConnectOptions options{.ssh = ssh_, .agent = &agent_};
  options.ssh.accept_command = "muster check --accept-new -i " + ShellWord(inventory);
  if (!flags_.known_hosts.empty())
    options.ssh.accept_command += " --known-hosts " + ShellWord(flags_.known_hosts);
  return options;
}

// Before anything with a deadline is under way.
void CommandContext::UnlockKeysOf(const record::Host& host) const {
  const auto unlock = [&](const auto& identities) {
    for (const std::string& identity : identities) {
      secrets_->Unlock(ExpandHome(identity, ssh_.home), ssh_.agent_socket);
    }
    if (!identities.empty()) return;
    for (const std::string& path : DefaultIdentities(ssh_.home)) secrets_->Unlock(path, ssh_.agent_socket);
  };
  if (host.local()) return;
  unlock(host.identities());
  for (const record::JumpHost& jump : host.jumps()) unlock(jump.identities());
}

ConnectOptions CommandContext::connect_options(std::span<const record::Host> hosts) const {
  for (const record::Host& host : hosts) UnlockKeysOf(host);
  return ConnectOptionsFor(flags_.inventory);
}

void CommandContext::UnlockKeysOf(const record::JobRecord& job) const {
  for (const auto& hosts : {job.hosts(), job.spare_hosts(), job.drivers()}) {
    for (const record::Host& host : hosts) UnlockKeysOf(host);
  }
}

ConnectOptions CommandContext::connect_options(const record::JobRecord& job) const {
  UnlockKeysOf(job);
  ConnectOptions options = ConnectOptionsFor(job.inventory_file());
  const std::filesystem::path known_hosts = job.known_hosts();
  const bool is_other = !known_hosts.empty() && known_hosts != std::filesystem::absolute(ssh_.known_hosts);
  std::error_code ignored;
  if (!flags_.known_hosts.empty() || !is_other || !std::filesystem::exists(known_hosts, ignored))
    return options;
  options.ssh.known_hosts = known_hosts;
  options.ssh.accept_command += " --known-hosts " + ShellWord(known_hosts.string());
  return options;
}

Duration CommandContext::connect_timeout() const { return *FromSeconds(flags_.connect_timeout_s); }

absl::StatusOr<Inventory> CommandContext::ReadInventoryFlag() const {
  std::error_code error;
  if (flags_.inventory == kUsualInventory && !std::filesystem::exists(kUsualInventory, error)) {
    return InvalidArgument("%s: there is no such file here: give -i FILE, or set MUSTER_INVENTORY",
                           kUsualInventory);
  }
  MUSTER_ASSIGN_OR_RETURN(Inventory inventory, ReadInventoryOf(flags_.inventory));
  if (!flags_.hosts.empty()) {
    MUSTER_RETURN_IF_ERROR(Annotate(SelectHosts(flags_.hosts, &inventory), "--hosts"));
  }
  return inventory;
}

absl::StatusOr<Job> CommandContext::ReadJobFlag() const {
  return ReadJob(flags_.job, home_, {.servers_stand = !flags_.cluster.empty()});
}

void CommandContext::Print(const Table& table) const {
  PrintToStdout(flags_.format == OutputFormat::kJson ? table.ToJson() : table.ToText());
}

}  // namespace muster
