#pragma once

#include <string>
#include <string_view>

/// What follows `--device` among a program's arguments: "cpu" unless given, "cuda" for a GPU for
/// each rank, "cuda:0" for one that the ranks share (oslo::local_device).
inline std::string device_option(int argc, char** argv) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::string_view(argv[i]) == "--device") return argv[i + 1];
  }
  return "cpu";
}
