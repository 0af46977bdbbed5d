#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "checkpoint/storage/file_io.h"

namespace oslo {

/// The index of a model that lies in several files, `model.safetensors.index.json` or
/// `pytorch_model.bin.index.json`:
///
///   {"metadata": {"total_size": 1234}, "weight_map": {"wte.weight": "model-00001-of-00002..."}}
///
/// Names of files come from it alone: nothing is guessed from their numbers.
struct WeightIndex {
  int64_t total_size = 0;                         ///< bytes of all tensors
  std::map<std::string, std::string> files = {};  ///< tensor -> file in the same folder

  /// Throws `Error` naming the file for what is no such index: more than 256 MB, no JSON, an entry
  /// that is no text, or one that leads out of the folder.
  static WeightIndex read(const std::filesystem::path& path) { return read(InputFile(path)); }
  static WeightIndex read(const InputFile& file);

  /// Throws `Error` naming the file if it cannot be written.
  void write(const std::filesystem::path& path) const;
};

}  // namespace oslo
