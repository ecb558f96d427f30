// Text that comes from outside, inside HTML and SVG.
#pragma once

#include <string>
#include <string_view>

namespace muster::bench {

/// For element content and quoted attributes: the five characters that mean something there are written as
/// references; what XML does not allow (control characters, bytes that are no UTF-8) becomes U+FFFD.
std::string Escape(std::string_view text);

}  // namespace muster::bench
