#include "launcher/commands/context.h"

#include <cstdio>
#include <cstdlib>

namespace muster {
namespace {

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace

absl::StatusOr<CommandContext> CommandContext::Create(const CommandFlags& flags) {
  const std::string home = Variable("HOME");
  if (home.empty()) return InvalidArgument("HOME is not set");
  const std::string folder = Variable("MUSTER_HOME");
  CommandContext context(flags, JobStore(folder.empty() ? home + "/.muster" : folder));
  MUSTER_ASSIGN_OR_RETURN(context.installation_, FindInstallation());
  MUSTER_ASSIGN_OR_RETURN(context.agent_, LoadAgentProgram(context.installation_));
  context.ssh_ = SshOptionsFromEnvironment();
  if (!flags.known_hosts.empty()) context.ssh_.known_hosts = flags.known_hosts;
  context.ssh_.accept_new_keys = flags.accept_new;
  context.ssh_.accept_command = "muster check --accept-new -i " + flags.inventory;
  context.home_ = home;
  context.data_folder_ = Variable("MUSTER_DATA");
  return context;
}

Duration CommandContext::connect_timeout() const {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(flags_.connect_timeout_s));
}

absl::StatusOr<Inventory> CommandContext::ReadInventoryFlag() const {
  return ReadInventory(flags_.inventory, home_);
}

absl::StatusOr<Job> CommandContext::ReadJobFlag() const { return ReadJob(flags_.job, home_); }

void CommandContext::Print(const Table& table) const {
  std::fputs((flags_.format == OutputFormat::kJson ? table.ToJson() : table.ToText()).c_str(), stdout);
}

}  // namespace muster
