#pragma once

#include <cstdint>
#include <string>

namespace oslo {

/// How far a copy of bytes is after so many seconds, how fast, and how long it will go on, or
/// took where it is through ("in 5 s"):
///
///   [############............]  51 %  2.1 GB of 4.1 GB  812.4 MB/s  3 s left
std::string transfer_text(uint64_t done, uint64_t all, double seconds);

}  // namespace oslo
