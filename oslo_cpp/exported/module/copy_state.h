#pragma once

#include <string>

namespace torch::nn {
class Module;
}

namespace oslo::exported {

/// Gives a module the values, types, devices and modes of another that was made of the same file.
/// Throws `Error`, led by `file`, where they are two models.
void copy_state(const torch::nn::Module& from, torch::nn::Module& to, const std::string& file);

}  // namespace oslo::exported
