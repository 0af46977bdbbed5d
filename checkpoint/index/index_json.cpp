#include "checkpoint/index/checkpoint_index.h"

#include <algorithm>
#include <new>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/formats/json/bounded_json.h"
#include "checkpoint/formats/json/json_node.h"
#include "checkpoint/formats/tensors/tensor_bytes.h"
#include "checkpoint/formats/tensors/torch_dtypes.h"
#include "checkpoint/index/index_parts.h"
#include "checkpoint/storage/file_io.h"
#include "checkpoint/storage/hash.h"
#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"

namespace oslo {
namespace {

using Json = nlohmann::json;

constexpr char kFormat[] = "oslo_checkpoint";
constexpr char kSha256[] = "sha256", kXxh128[] = "xxh128";
// A reader refuses newer versions: whatever a reader must not overlook raises it.
constexpr int64_t kVersion = 2;

Json to_json(const RankGrid& mesh) {
  if (const auto order = mesh.rank_order()) {
    return {{"tensor", mesh.size("tensor")},
            {"pipeline", mesh.size("pipeline")},
            {"data", mesh.size("data")},
            {"rank_order", to_string(*order)}};
  }
  Json axes = Json::array();
  for (const Axis& axis : mesh.axes()) axes.push_back({{"name", axis.name}, {"size", axis.size}});
  return {{"axes", std::move(axes)}};
}

Json to_json(const CheckpointIndex& index, const IndexLimits& limits) {
  Json json = {{"format", kFormat}, {"version", kVersion}};
  json["mesh"] = to_json(index.mesh);
  json["files"] = Json::object();
  for (const auto& [name, file] : index.files) {
    const bool old = file.kind == FileContents::Hash::sha256;
    json["files"][name] = {{"bytes", file.bytes}, {old ? kSha256 : kXxh128, file.hash}};
  }
  IndexTables tables(limits);
  json["tensors"] = Json::object();
  for (const auto& [name, tensor] : index.tensors) {
    Json& entry = json["tensors"][name] = {{"shape", tensor.shape},
                                           {"dtype", find_torch_dtype(tensor.dtype)->name}};
    if (tensor.transposed) entry["transposed"] = true;
    tables.add(tensor, entry);
  }
  json["cuts"] = tables.cuts();
  json["places"] = tables.places();
  json["ties"] = index.ties;
  if (index.optimizer) json["optimizer"] = to_json(*index.optimizer);
  if (index.scheduler_steps) json["scheduler"] = {{"steps", *index.scheduler_steps}};
  if (index.random_mesh) json["random_states"] = {{"mesh", to_json(*index.random_mesh)}};
  return json;
}

c10::ScalarType read_dtype(const JsonNode& node) {
  const std::string name = node.text();
  const auto* known = std::find_if(std::begin(kTorchDtypes), std::end(kTorchDtypes),
                                   [&](const TorchDtype& dtype) { return dtype.name == name; });
  OSLO_CHECK_AS(file, known != std::end(kTorchDtypes), node.where(), " is '", printable(name),
                "', which is no dtype");
  return known->dtype;
}

bool read_transposed(const JsonNode& node, const CheckpointIndex::Tensor& tensor) {
  OSLO_CHECK_AS(file,
                node.truth() && tensor.shape.size() == 2 &&
                    std::all_of(tensor.parts.begin(), tensor.parts.end(),
                                [](const auto& part) { return part.cuts.empty(); }),
                node.where(), " is of a matrix that lies in one part; of others it is not read");
  return true;
}

RankGrid read_mesh(const JsonNode& node) {
  if (node.object().count("axes") == 0) {
    return RankGrid::of_sizes(node["data"].count(), node["tensor"].count(),
                              node["pipeline"].count(),
                              parse_rank_order(node["rank_order"].text()));
  }
  std::vector<Axis> axes;
  for (const JsonNode& axis : node["axes"].list()) {
    axes.push_back({axis["name"].text(), axis["size"].count()});
    OSLO_CHECK_AS(file, axes.back().size >= 1, axis.where(), " has size 0");
  }
  return RankGrid(std::move(axes));
}

CheckpointIndex from_json(const JsonNode& root, int64_t version, const IndexLimits& limits) {
  CheckpointIndex index;
  index.mesh = read_mesh(root["mesh"]);
  for (const auto& [name, file] : root["files"].items()) {
    // A name, so that nobody is led out of the folder.
    OSLO_CHECK_AS(
        file, std::filesystem::path(name).filename() == name && name != ".." && name != ".",
        root.where(), ": '", printable(name), "' is not the name of a file in this folder");
    const bool old = file.has(kSha256);
    index.files[name] = {static_cast<uint64_t>(file["bytes"].number()),
                         old ? FileContents::Hash::sha256 : FileContents::Hash::xxh128,
                         file[old ? kSha256 : kXxh128].text()};
  }
  IndexParts parts(root, version, index.files, limits);
  for (const auto& [name, node] : root["tensors"].items()) {
    CheckpointIndex::Tensor tensor{node["shape"].numbers(), read_dtype(node["dtype"]), {}};
    OSLO_CHECK_AS(file, tensor.shape.size() <= kMostDimensions, node.where(), " has ",
                  tensor.shape.size(), " dimensions, and at most ", kMostDimensions, " are read");
    tensor.parts = parts.of(node, tensor.shape);
    if (node.has("transposed")) tensor.transposed = read_transposed(node["transposed"], tensor);
    index.tensors.emplace(name, std::move(tensor));
  }
  for (const auto& [name, node] : root["ties"].items()) {
    const std::string tensor = node.text();
    OSLO_CHECK_AS(file, index.tensors.count(tensor) > 0 && index.tensors.count(name) == 0,
                  node.where(), " is a second name of '", printable(tensor),
                  "', which does not fit the tensors");
    index.ties[name] = tensor;
  }
  if (root.has("optimizer")) index.optimizer = read_optimizer(root["optimizer"]);
  if (root.has("scheduler")) index.scheduler_steps = root["scheduler"]["steps"].number();
  if (root.has("random_states")) index.random_mesh = read_mesh(root["random_states"]["mesh"]);
  return index;
}

}  // namespace

void CheckpointIndex::write(const std::filesystem::path& path, const IndexLimits& limits) const {
  std::string text;
  try {
    Json json = to_json(*this, limits);
    json["checksum"] = sha256(write_json(json, limits.json));
    JsonLimits room = limits.json;
    room.bytes -= std::min<size_t>(room.bytes, 1);  // a line's end
    text = write_json(json, room, /*indent=*/1) + "\n";
  } catch (const Error& error) {
    fail_as(ErrorKind::file, "cannot write ", printable_path(path),
            ", which no load could read: ", error.what(),
            "; save with SaveOptions().merge_checkpoints(true), or over fewer ranks");
  }
  OutputFile file(path);
  file.write(text.data(), text.size());
  file.close();
}

CheckpointIndex CheckpointIndex::read(const std::filesystem::path& path) {
  return read(InputFile(path));
}

CheckpointIndex CheckpointIndex::read(const InputFile& opened, std::string* checksum_read,
                                      const IndexLimits& limits) try {
  const std::string file = printable_path(opened.path());
  Json json;
  {
    const std::string text = read_file(opened, limits.json.bytes);
    try {
      json = read_json(text, limits.json);
    } catch (const Error& error) {
      fail_as(ErrorKind::file, file, " is cut or damaged: ", error.what());
    }
  }
  const JsonNode root(json, file);
  OSLO_CHECK_AS(file, root["format"].text() == kFormat, file, " is no index of a checkpoint");
  const int64_t version = root["version"].number();
  OSLO_CHECK_AS(file, version >= 1 && version <= kVersion, file, " has format version ", version,
                ", this library reads versions 1 to ", kVersion,
                "; use the library that wrote it or newer");
  const std::string checksum = root["checksum"].text();
  json.erase("checksum");
  OSLO_CHECK_AS(file, sha256(json.dump()) == checksum, file,
                " is damaged: its checksum does not fit; copy or save the checkpoint again");
  if (checksum_read != nullptr) *checksum_read = checksum;
  return from_json(root, version, limits);
} catch (const std::bad_alloc&) {
  fail_as(ErrorKind::file, printable_path(opened.path()), " takes more memory than there is");
}

}  // namespace oslo
