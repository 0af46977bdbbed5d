#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace oslo {

/// The nearest of `names` that may be what `name` was to say: at most a third of its letters
/// changed, and one at least, or letters left out only. Null where there is none.
const std::string* name_meant(const std::vector<std::string>& names, std::string_view name);

/// Whether one is the other with a typo: at most a quarter of its letters changed, and one at
/// least.
bool is_near(std::string_view name, std::string_view other);

}  // namespace oslo
