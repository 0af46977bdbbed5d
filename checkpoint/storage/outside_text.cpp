#include "checkpoint/storage/outside_text.h"

#include <nlohmann/json.hpp>

namespace oslo {

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i++]);
    if (lead < 0x80) {
      continue;
    }
    const int tail = lead >= 0xC2 && lead < 0xE0   ? 1
                     : lead >= 0xE0 && lead < 0xF0 ? 2
                     : lead >= 0xF0 && lead < 0xF5 ? 3
                                                   : 0;
    if (tail == 0 || text.size() - i < static_cast<size_t>(tail)) {
      return false;
    }
    char32_t point = lead & (0x3F >> tail);
    for (int k = 0; k < tail; ++k) {
      const auto byte = static_cast<unsigned char>(text[i++]);
      if ((byte & 0xC0) != 0x80) {
        return false;
      }
      point = (point << 6) | (byte & 0x3F);
    }
    if ((tail == 2 && (point < 0x800 || (point >= 0xD800 && point < 0xE000))) ||
        (tail == 3 && (point < 0x10000 || point > 0x10FFFF))) {
      return false;
    }
  }
  return true;
}

std::string printable(std::string_view text, size_t longest) {
  const std::string shown(text.substr(0, longest));
  const std::string quoted =
      nlohmann::json(shown).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  // Without the quotes of JSON, and quotes inside as they were.
  std::string plain;
  for (size_t i = 1; i + 1 < quoted.size(); ++i) {
    const bool escaped = quoted[i] == '\\' && (quoted[i + 1] == '"' || quoted[i + 1] == '\\');
    plain += quoted[escaped ? ++i : i];
  }
  return text.size() > longest ? plain + "..." : plain;
}

std::string printable_path(const std::filesystem::path& path) {
  return printable(path.string(), 1000);
}

}  // namespace oslo
