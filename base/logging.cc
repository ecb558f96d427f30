#include "base/logging.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include <cstdlib>
#include <memory>

namespace muster {

void InitLogging(const std::string& name, spdlog::level::level_enum level) {
  const auto colors =
      std::getenv("NO_COLOR") != nullptr ? spdlog::color_mode::never : spdlog::color_mode::automatic;
  auto logger =
      std::make_shared<spdlog::logger>(name, std::make_shared<spdlog::sinks::stderr_color_sink_mt>(colors));
  logger->set_pattern(name.empty() ? "%H:%M:%S.%e %^%L%$ %v" : "%H:%M:%S.%e %^%L%$ %n %v");
  logger->set_level(level);
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace muster
