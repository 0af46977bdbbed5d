#pragma once

#include <ATen/ATen.h>
#include <stdio.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

#include "checkpoint/storage/hash.h"

// Checkpoints as Python reads them.
namespace oslo::test {

/// The Python that reads: OSLO_TEST_PYTHON, one that has torch (of the tests or the benchmarks), or
/// that which LibTorch was installed with.
inline std::string python() {
  if (const char* asked = std::getenv("OSLO_TEST_PYTHON")) return asked;
  for (const char* folder : {".venv-transformers", ".venv-peers", ".venv"}) {
    const auto found = std::filesystem::path(OSLO_SOURCE_DIR) / folder / "bin/python";
    if (std::filesystem::exists(found)) return found.string();
  }
  return "python3";
}

/// What tests/support/read_state.py prints of a file: "reader", and "state" with an entry for each
/// tensor.
inline nlohmann::json python_state(const std::filesystem::path& file) {
  const std::string command =
      python() + " " OSLO_SOURCE_DIR "/tests/support/read_state.py " + file.string() + " 2>&1";
  FILE* const out = ::popen(command.c_str(), "r");
  if (out == nullptr) throw std::runtime_error("cannot run " + command);
  std::string text;
  std::array<char, 4096> buffer;
  while (const size_t count = ::fread(buffer.data(), 1, buffer.size(), out)) {
    text.append(buffer.data(), count);
  }
  if (::pclose(out) != 0) throw std::runtime_error(command + ": " + text);
  // Behind whatever an import had to say.
  const size_t last = text.rfind('\n', text.size() - 2);
  return nlohmann::json::parse(last == std::string::npos ? text : text.substr(last + 1));
}

/// The entry that `python_state` should have of a tensor.
inline nlohmann::json python_entry(const at::Tensor& tensor) {
  static const std::map<at::ScalarType, std::string> kNames{
      {at::kDouble, "float64"}, {at::kFloat, "float32"},     {at::kHalf, "float16"},
      {at::kLong, "int64"},     {at::kBFloat16, "bfloat16"}, {at::kBool, "bool"}};
  const at::Tensor plain = tensor.detach().cpu().contiguous();
  const std::string_view bytes(static_cast<const char*>(plain.const_data_ptr()), plain.nbytes());
  return {kNames.at(plain.scalar_type()), plain.sizes().vec(), sha256(bytes)};
}

}  // namespace oslo::test
