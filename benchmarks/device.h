#pragma once

#include <torch/cuda.h>
#include <torch/torch.h>

#include <cstdlib>
#include <iostream>
#include <string>

#include "mpu/world/local_device.h"
#include "mpu/world/world.h"

namespace bench {

/// Takes `--device NAME` or `--device=NAME` out of the arguments; "cpu" where it is not there.
inline std::string take_device_name(int& argc, char** argv) {
  const std::string flag = "--device";
  std::string name = "cpu";
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == flag && i + 1 < argc) {
      name = argv[++i];
    } else if (word.rfind(flag + "=", 0) == 0) {
      name = word.substr(flag.size() + 1);
    } else {
      argv[kept++] = argv[i];
    }
  }
  argc = kept;
  return name;
}

/// The device of that name, for a program of one rank. Ends the program where there is none.
inline torch::Device device_named(const std::string& name) {
  try {
    return oslo::local_device(oslo::World::alone(), name);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    std::exit(1);
  }
}

/// Returns when the device has done what it was given.
inline void finish(const torch::Device& device) {
  if (device.is_cuda()) torch::cuda::synchronize(device.index());
}

}  // namespace bench
