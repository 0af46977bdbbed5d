#include "checkpoint/pretrained/weight_index.h"

#include <nlohmann/json.hpp>

#include "checkpoint/formats/json/bounded_json.h"
#include "checkpoint/storage/file_io.h"
#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"

namespace oslo {
namespace {

constexpr JsonLimits kIndexLimits = {.bytes = 256 << 20, .values = 8 << 20, .depth = 4};

nlohmann::json read_document(const InputFile& file) {
  try {
    return read_json(read_file(file, kIndexLimits.bytes), kIndexLimits);
  } catch (const Error& error) {
    fail_as(ErrorKind::file, printable_path(file.path()), ": ", error.what());
  }
}

}  // namespace

WeightIndex WeightIndex::read(const InputFile& file) {
  const std::string where = printable_path(file.path());
  const nlohmann::json document = read_document(file);
  OSLO_CHECK_AS(
      file,
      document.is_object() && document.contains("weight_map") && document["weight_map"].is_object(),
      where, " has no weight_map: it is no index of a model's files");
  WeightIndex index;
  for (const auto& [name, value] : document["weight_map"].items()) {
    OSLO_CHECK_AS(file, value.is_string(), where, ": the file of '", printable(name),
                  "' is no text");
    const std::string listed = value.get<std::string>();
    OSLO_CHECK_AS(file,
                  std::filesystem::path(listed).filename() == listed && !listed.empty() &&
                      listed != "." && listed != ".." && listed.find('\0') == std::string::npos,
                  where, ": '", printable(name), "' lies in '", printable(listed),
                  "', which is not the name of a file in this folder");
    index.files[name] = listed;
  }
  const auto metadata = document.find("metadata");
  if (metadata != document.end() && metadata->is_object()) {
    const auto size = metadata->find("total_size");
    if (size != metadata->end() && size->is_number_integer()) index.total_size = *size;
  }
  return index;
}

void WeightIndex::write(const std::filesystem::path& path) const {
  const nlohmann::json document = {{"metadata", {{"total_size", total_size}}},
                                   {"weight_map", files}};
  const std::string text = write_json(document, kIndexLimits, /*indent=*/2) + "\n";
  OutputFile file(path);
  file.write(text.data(), text.size());
  file.close();
}

}  // namespace oslo
