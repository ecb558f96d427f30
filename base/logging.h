// Logging through spdlog, to stderr, one line each: "12:00:01.250 W worker:0 message". Programs call
// InitLogging once, in main.
#pragma once

#include <spdlog/spdlog.h>

#include <string>

namespace muster {

/// `name` stands in each line ("" for none). Colour only when stderr is a terminal and NO_COLOR is not set.
void InitLogging(const std::string& name, spdlog::level::level_enum level = spdlog::level::info);

}  // namespace muster
