#pragma once

#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <string>

#include "checkpoint/formats/tensor_file.h"
#include "checkpoint/formats/tensors/state_dict.h"
#include "checkpoint/formats/tensors/tensor_stream.h"
#include "checkpoint/storage/file_io.h"
#include "checkpoint/storage/format.h"

namespace oslo {

/// What a file is to say beside its tensors, as far as its format can.
struct FileNotes {
  std::map<std::string, std::string> ties = {};  ///< second names of tensors, each with the first
  std::map<std::string, std::string> texts = {};
};

/// How files of a format are read and written, and what they can hold.
struct FileFormat {
  bool knows_ties;   ///< two names of one tensor are one tensor in a file, and after loading
  bool holds_texts;  ///< free text beside the tensors: `TensorFile::metadata`

  /// Throws `Error` naming the file.
  std::unique_ptr<TensorFile> (*open)(const InputFile& file);
  /// Names of a state that share a storage share it in the file where the format knows ties.
  FileContents (*write)(const std::filesystem::path& path, const StateDict& state,
                        const FileNotes& notes);
  /// The same of tensors that come one by one; names that share one are those of `notes`.
  FileContents (*write_stream)(const std::filesystem::path& path, const TensorStream& tensors,
                               const FileNotes& notes);
};

// Each in a file of its own.
extern const FileFormat kSafetensorsFormat;
extern const FileFormat kTorchBinFormat;

inline const FileFormat& file_format(Format format) {
  // In the order of `Format`.
  static constexpr const FileFormat* kFileFormats[] = {&kSafetensorsFormat, &kTorchBinFormat};
  static_assert(std::size(kFileFormats) == std::size(kFormats));
  return *kFileFormats[static_cast<size_t>(format)];
}

/// Opens a file of the format that its extension says. Throws `Error` naming the file.
inline std::unique_ptr<TensorFile> open_tensor_file(const InputFile& file) {
  return file_format(format_of_file(file.path()).value_or(kDefaultFormat)).open(file);
}

}  // namespace oslo
