#include "tests/reader_fuzz_test/readers.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "checkpoint/formats/json/bounded_json.h"
#include "checkpoint/formats/safetensors.h"
#include "checkpoint/formats/torch_bin/stored_zip.h"
#include "checkpoint/formats/torch_bin/torch_bin.h"
#include "checkpoint/formats/torch_bin/unpickler.h"
#include "checkpoint/index/checkpoint_index.h"
#include "checkpoint/storage/hash.h"
#include "mpu/base/error.h"
#include "oslo_cpp/exported/module/exported_module.h"
#include "tests/reader_fuzz_test/memory_file.h"
#include "tests/reader_fuzz_test/zip_text.h"

namespace oslo::fuzz {
namespace {

constexpr JsonLimits kLimits{.bytes = 1 << 20, .values = 1 << 16, .depth = 96};

/// Looks at every byte, so that one outside of its storage is found.
void look_at(const at::Tensor& tensor) {
  if (tensor.numel() > 0) tensor.clone(at::MemoryFormat::Contiguous);
}

void read_safetensors_file(std::string_view input) {
  const MemoryFile file(input);
  const SafetensorsFile read(file.path());
  for (const std::string& key : read.keys()) {
    look_at(read.read(key));
    const auto& shape = read.shape(key);
    if (shape.empty() || shape[0] == 0) continue;
    look_at(read.read_elements(key, 0, read.read(key).numel() / shape[0]));
  }
}

void read_bin_file(std::string_view input) {
  const MemoryFile file(input);
  for (const auto& [name, tensor] : read_torch_bin(file.path())) look_at(tensor);
}

void read_pickle(std::string_view input) {
  const StorageLoader zeros = [](std::string_view key, uint64_t bytes) {
    OSLO_CHECK(bytes <= 4096, "the storage ", std::string(key), " is not that large");
    return at::zeros({static_cast<int64_t>(bytes)}, at::kByte).storage();
  };
  for (const auto& [name, tensor] : unpickle_state_dict(input, "input", zeros)) look_at(tensor);
}

/// What was read is written, and read again.
void read_json_text(std::string_view input) {
  const nlohmann::ordered_json read = read_ordered_json(input, kLimits);
  const std::string text = read.dump();
  OSLO_CHECK(text.size() <= kLimits.bytes, "larger than it was");
  if (read_ordered_json(text, kLimits) != read) {
    throw std::logic_error("what was read is not what was written: " + text);
  }
}

void read_index(std::string_view input) {
  nlohmann::json json = read_json(input, kLimits);
  if (json.is_object()) {
    json.erase("checksum");
    json["checksum"] = sha256(json.dump());
  }
  const MemoryFile file(json.dump());
  CheckpointIndex::read(file.path());
}

std::vector<std::pair<std::string, std::string>> records_of_a_perceptron() {
  const StoredZip zip(OSLO_SOURCE_DIR "/tests/data/exported/mlp.pt2");
  std::vector<std::pair<std::string, std::string>> records;
  for (const std::string name :
       {"archive_format", "archive_version", "byteorder", ".data/version", "data/weights/weight_0",
        "data/weights/weight_1", "data/weights/weight_2", "data/weights/weight_3",
        "data/weights/weight_4", "data/weights/model_weights_config.json",
        "data/constants/tensor_0", "data/constants/tensor_1",
        "data/constants/model_constants_config.json"}) {
    records.emplace_back("mlp/" + name, zip.read_text(name, 1 << 20));
  }
  return records;
}

void read_exported_program(std::string_view input) {
  static const auto others = records_of_a_perceptron();
  auto records = others;
  records.emplace_back("mlp/models/model.json", input);
  const MemoryFile file(zip_text(records));
  load_exported(file.path());
}

Reader refusing(void (*read)(std::string_view)) {
  return [read](std::string_view input) {
    try {
      read(input);
    } catch (const Error&) {  // refused by name: as it should be
    }
  };
}

}  // namespace

const std::map<std::string, Reader>& readers() {
  static const std::map<std::string, Reader> all{
      {"safetensors", refusing(read_safetensors_file)},
      {"torch_bin", refusing(read_bin_file)},
      {"pickle", refusing(read_pickle)},
      {"json", refusing(read_json_text)},
      {"checkpoint_index", refusing(read_index)},
      {"exported_program", refusing(read_exported_program)}};
  return all;
}

}  // namespace oslo::fuzz
