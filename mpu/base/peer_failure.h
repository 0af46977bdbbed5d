#pragma once

#include <string_view>

namespace oslo {

/// In every error of an operation that another rank has to take part in. Where several ranks fail,
/// those without it are the cause and those with it the consequence.
inline constexpr std::string_view kPeerFailure = "; another rank has ended, is late";

/// Whether `error` is what a rank says that found another one failed, or waited for it in vain.
inline bool tells_of_a_peer(std::string_view error) {
  return error.find(kPeerFailure) != std::string_view::npos;
}

}  // namespace oslo
