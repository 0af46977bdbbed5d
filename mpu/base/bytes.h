#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace oslo {

/// "9999 B", "12.3 KB".
std::string byte_text(int64_t bytes);

/// "2GB", "1.5 GiB", "4096": a number, and a unit of thousands (KB, MB, GB, TB) or of 1024 (KiB to
/// TiB); without one, or with B, bytes. Nothing for any other text, and for less than one byte.
std::optional<int64_t> parse_bytes(std::string_view text);

}  // namespace oslo
