#pragma once

#include <string>

namespace oslo {

/// "7 s", "3 min 20 s", "2 h 5 min": the next whole second.
std::string duration_text(double seconds);

/// "[############............]  51 %", of a share from 0 to 1.
std::string bar_text(double share);

}  // namespace oslo
