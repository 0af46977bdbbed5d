#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

namespace oslo {

/// A JSON file with the files that its "base" names, a path or a list of paths relative to the file
/// that it stands in:
///
///     {"base": "common/train.json", "train": {"dist": {"tensor_parallel_size": 8}}}
///
/// A later base wins over earlier ones, and the file over its bases: objects are merged key by key,
/// anything else (lists, null) replaces what was there. "base" itself is not in what is returned.
/// `check` is called with the document of each file alone. Throws `FileError` for a file that
/// cannot be read, and `ConfigError` with the file's name in front for what is wrong in it: bad
/// JSON, what `check` throws, files that are each other's bases. At most 256 files are read.
nlohmann::ordered_json read_config_files(
    const std::string& path, const std::function<void(nlohmann::ordered_json& document)>& check);

/// Throws `ConfigError` where a text that is no file has a "base".
void check_no_base(const nlohmann::ordered_json& document);

/// "config file 'train.json'", with which its errors begin.
std::string config_file_name(const std::string& path);

}  // namespace oslo
