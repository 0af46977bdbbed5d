#pragma once

#include <optional>
#include <string>

#include "parallelizers/plan/dry/rates.h"

namespace oslo {

/// Where rates are kept between runs: oslo/rates.json in $XDG_CACHE_HOME, else in ~/.cache. Empty
/// where there is neither.
std::string kept_rates_path();

/// The rates of `machine` in a file that `keep_rates` wrote. None where the file is missing, cannot
/// be read or does not know the machine: a cache that is broken is measured again.
std::optional<Rates> kept_rates(const std::string& path, const std::string& machine);

/// Adds the rates to the file, in place of earlier ones of the same machine. Another process sees
/// the old file or the new one, never half of it. Whether it could: a cache that cannot be written
/// is no error.
bool keep_rates(const std::string& path, const Rates& rates);

/// The rates in a file that a user names: one machine's. Throws when it holds none, or several.
Rates read_rates(const std::string& path);

}  // namespace oslo
