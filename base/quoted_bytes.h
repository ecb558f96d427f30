// Text from outside in messages.
#pragma once

#include <string>
#include <string_view>

namespace muster {

/// The first 40 bytes in double quotes, "..." for more; quotes, backslashes and all that is not printable
/// ASCII are escaped as in C, so that a terminal acts on nothing.
std::string QuotedBytes(std::string_view text);

}  // namespace muster
