#pragma once

#include <string>

namespace oslo {

/// Eight digits that other hosts do not have, nor containers beside this one, for the names of what
/// a save has under way: whoever finds some knows whether the processes that it would ask, or the
/// locks, are here.
std::string host_digits();

}  // namespace oslo
