#include "launcher/latency.h"

#include <absl/strings/ascii.h>
#include <absl/strings/numbers.h>

#include <string>

namespace muster {
namespace {

// The number in the line that begins with `sentinel`, whatever a shell printed before it.
absl::StatusOr<double> ReadNumber(Transport& transport, CommandChannel& channel, const std::string& sentinel,
                                  TimePoint deadline) {
  std::string text;
  while (true) {
    const size_t at = text.find(sentinel);
    const size_t end = at == std::string::npos ? at : text.find('\n', at);
    if (end != std::string::npos) {
      const std::string number = text.substr(at + sentinel.size(), end - at - sentinel.size());
      double value = 0;
      if (absl::SimpleAtod(number, &value)) return value;
      return Unavailable("%s: the agent said '%s%s'", transport.host(), sentinel, number);
    }
    char bytes[256];
    MUSTER_ASSIGN_OR_RETURN(const size_t count, transport.Read(channel, bytes, deadline));
    if (count == 0)
      return Unavailable("%s: %s", transport.host(), absl::StripAsciiWhitespace(channel.StderrTail()));
    text.append(bytes, count);
  }
}

}  // namespace

absl::StatusOr<double> MeasureLatency(const record::Host& from, const record::Host& to,
                                      const ConnectOptions& options, TimePoint deadline) {
  MUSTER_ASSIGN_OR_RETURN(const auto echo_host, AgentConnection::Connect(to, options, deadline));
  MUSTER_ASSIGN_OR_RETURN(const auto ping_host, AgentConnection::Connect(from, options, deadline));
  MUSTER_ASSIGN_OR_RETURN(const auto echo,
                          echo_host->StartAgentCommand("echo --address " + to.data_address(), deadline));
  MUSTER_ASSIGN_OR_RETURN(const double port,
                          ReadNumber(echo_host->transport(), *echo, "muster-echo port ", deadline));
  MUSTER_ASSIGN_OR_RETURN(
      const auto ping,
      ping_host->StartAgentCommand(absl::StrFormat("ping --address %s --port %.0f", to.data_address(), port),
                                   deadline));
  MUSTER_ASSIGN_OR_RETURN(const double seconds,
                          ReadNumber(ping_host->transport(), *ping, "muster-ping seconds ", deadline));
  return seconds / 2;
}

}  // namespace muster
