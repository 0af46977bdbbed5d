#pragma once

#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

#include "mpu/base/error.h"

namespace oslo {

/// The formats of files that tensors lie in. What is called how stands here, for programs without
/// LibTorch too; how files are read and written, and what they can hold, in
/// checkpoint/formats/file_format.h.
enum class Format { safetensors, torch_bin };

struct FormatNames {
  Format format;
  const char* name;       ///< what users say
  const char* extension;  ///< of its files
  const char* model;      ///< the stem of a whole model's file, as other programs look for it
  bool unasked;           ///< whether a merged save that was asked for no format writes it
};

/// In the order of `Format`. Of a model that lies in files of several the first is read, and where
/// files have to be of one format and none was asked for, they are of the first.
inline constexpr FormatNames kFormats[] = {
    {Format::safetensors, "safetensors", ".safetensors", "model", true},
    {Format::torch_bin, "bin", ".bin", "pytorch_model", true},
};
inline constexpr Format kDefaultFormat = kFormats[0].format;

constexpr const FormatNames& names_of(Format format) {
  return kFormats[static_cast<size_t>(format)];
}

/// The format that users call so.
inline std::optional<Format> find_format(std::string_view name) {
  for (const FormatNames& each : kFormats) {
    if (name == each.name) return each.format;
  }
  return std::nullopt;
}

/// What `text` makes of each format, for a sentence: "a .safetensors or a .bin".
template <typename Text>
std::string each_format(const Text& text, const char* before_last) {
  std::string all;
  for (const FormatNames& each : kFormats) {
    if (!all.empty()) all += &each == std::end(kFormats) - 1 ? before_last : ", ";
    all += text(each);
  }
  return all;
}

/// The same; throws `Error` where there is none.
inline Format format_called(std::string_view name) {
  const std::optional<Format> found = find_format(name);
  OSLO_CHECK(
      found, "the checkpoint format '", name, "' is not known; use ",
      each_format([](const FormatNames& each) { return c10::str("'", each.name, "'"); }, " or "));
  return *found;
}

/// The format that a file has by its extension.
inline std::optional<Format> format_of_file(const std::filesystem::path& file) {
  const std::string extension = file.extension();
  for (const FormatNames& each : kFormats) {
    if (extension == each.extension) return each.format;
  }
  return std::nullopt;
}

/// The name of a file without extension -> with it.
inline std::string file_name(const std::string& stem, Format format) {
  return stem + names_of(format).extension;
}

/// The file of a whole model: "model.safetensors".
inline std::string model_file(Format format) {
  return file_name(names_of(format).model, format);
}

/// Whether a file of this name may be a checkpoint's: tensors or JSON.
inline bool may_be_saved(const std::filesystem::path& file) {
  return format_of_file(file) || file.extension() == ".json";
}

}  // namespace oslo
