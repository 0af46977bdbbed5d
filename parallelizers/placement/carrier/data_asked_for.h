#pragma once

#include <c10/util/Exception.h>

namespace oslo {

/// What LibTorch throws in our words when something reads the memory of a placed tensor, which has
/// none of its shape. Operators of a program's own are then gathered (fallback.cpp).
inline constexpr const char* kCutDataAskedFor =
    "the data of a placed tensor was asked for: its elements are cut over ranks; take "
    "oslo::full_tensor(t) or oslo::local_tensor(t) (printing: std::cout << oslo::full_tensor(t))";
inline constexpr const char* kResidentDataAskedFor =
    "the data of a placed tensor was asked for: it has some on the ranks of its pipeline stage "
    "only, and nowhere while InitializeOptions::example_inputs is run; take oslo::local_tensor(t) "
    "where oslo::is_here(t)";
/// Whether that is what was thrown: LibTorch makes a c10::Error of these very words.
inline bool is_data_asked_for(const c10::Error& error) {
  return error.msg() == kCutDataAskedFor || error.msg() == kResidentDataAskedFor;
}

}  // namespace oslo
