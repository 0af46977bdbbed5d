#include "checkpoint/checkpoint_index.h"

#include <algorithm>
#include <new>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/formats/bounded_json.h"
#include "checkpoint/formats/json_node.h"
#include "checkpoint/formats/tensor_bytes.h"
#include "checkpoint/formats/torch_dtypes.h"
#include "checkpoint/storage/file_io.h"
#include "checkpoint/storage/hash.h"
#include "checkpoint/storage/outside_text.h"
#include "mpu/error.h"

namespace oslo {
namespace {

using Json = nlohmann::json;

constexpr char kFormat[] = "oslo_checkpoint";
constexpr char kSha256[] = "sha256", kXxh128[] = "xxh128";
// A reader refuses other versions: whatever a version 1 reader must not overlook raises it.
constexpr int64_t kVersion = 1;
// Enough for 50,000 tensors in 8 parts each. As a tree that takes a gigabyte.
constexpr JsonLimits kLimits = {.bytes = 256 << 20, .values = 8 << 20, .depth = 12};

Json to_json(const CheckpointIndex::Cuts& cuts) {
  Json list = Json::array();
  for (const auto& [dim, rank, cut] : cuts) {
    Json runs = Json::array();
    for (const Cut::Run& run : cut->runs()) {
      const std::vector<int64_t> pieces(run.pieces.begin(), run.pieces.end());
      runs.push_back({{"repeat", run.repeat}, {"pieces", pieces}});
    }
    list.push_back({{"dim", dim}, {"rank", rank}, {"runs", std::move(runs)}});
  }
  return list;
}

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

Json to_json(const CheckpointIndex& index) {
  Json json = {{"format", kFormat}, {"version", kVersion}};
  json["mesh"] = to_json(index.mesh);
  json["files"] = Json::object();
  for (const auto& [name, file] : index.files) {
    const bool old = file.kind == FileContents::Hash::sha256;
    json["files"][name] = {{"bytes", file.bytes}, {old ? kSha256 : kXxh128, file.hash}};
  }
  json["tensors"] = Json::object();
  for (const auto& [name, tensor] : index.tensors) {
    Json parts = Json::array();
    for (const auto& part : tensor.parts) {
      parts.push_back({{"file", part.file}, {"cuts", to_json(part.cuts)}});
    }
    json["tensors"][name] = {{"shape", tensor.shape},
                             {"dtype", find_torch_dtype(tensor.dtype)->name},
                             {"parts", std::move(parts)}};
    if (tensor.transposed) json["tensors"][name]["transposed"] = true;
  }
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
  OSLO_CHECK(known != std::end(kTorchDtypes), node.where(), " is '", printable(name),
             "', which is no dtype");
  return known->dtype;
}

/// A cut of a dimension that has `size` elements.
CutPtr read_cut(const JsonNode& node, int64_t size) {
  Cut::Runs runs;
  int64_t left = size;
  for (const JsonNode& item : node["runs"].list()) {
    const int64_t repeat = item["repeat"].number();
    const std::vector<int64_t> pieces = item["pieces"].numbers();
    OSLO_CHECK(repeat >= 1 && !pieces.empty() &&
                   (runs.empty() || runs.front().pieces.size() == pieces.size()),
               item.where(), " has no pieces, or another number of them than the run before");
    for (const int64_t piece : pieces) {
      OSLO_CHECK(piece <= left / repeat, node.where(), " cuts more than the ", size,
                 " elements of the dimension");
      left -= piece * repeat;
    }
    runs.push_back({repeat, Cut::Sizes(pieces.begin(), pieces.end())});
  }
  OSLO_CHECK(!runs.empty() && left == 0, node.where(), " cuts ", size - left, " of the ", size,
             " elements of the dimension");
  return std::make_shared<const Cut>(std::move(runs));
}

CheckpointIndex::Cuts read_cuts(const JsonNode& node, std::vector<int64_t> shape) {
  CheckpointIndex::Cuts cuts;
  for (const JsonNode& item : node.list()) {
    const int64_t dim = item["dim"].number();
    OSLO_CHECK(dim < static_cast<int64_t>(shape.size()), item.where(), " cuts dimension ", dim,
               " of a tensor of shape ", c10::IntArrayRef(shape));
    CutPtr cut = read_cut(item, shape[dim]);
    const int rank = item["rank"].count();
    OSLO_CHECK(rank < cut->ranks(), item.where(), " is rank ", rank, " of ", cut->ranks());
    shape[dim] = cut->local_size(rank);
    cuts.push_back({dim, rank, std::move(cut)});
  }
  return cuts;
}

bool read_transposed(const JsonNode& node, const CheckpointIndex::Tensor& tensor) {
  OSLO_CHECK(node.truth() && tensor.shape.size() == 2 &&
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
    OSLO_CHECK(axes.back().size >= 1, axis.where(), " has size 0");
  }
  return RankGrid(std::move(axes));
}

CheckpointIndex from_json(const JsonNode& root) {
  CheckpointIndex index;
  index.mesh = read_mesh(root["mesh"]);
  for (const auto& [name, file] : root["files"].items()) {
    // A name, so that nobody is led out of the folder.
    OSLO_CHECK(std::filesystem::path(name).filename() == name && name != ".." && name != ".",
               root.where(), ": '", printable(name), "' is not the name of a file in this folder");
    const bool old = file.has(kSha256);
    index.files[name] = {static_cast<uint64_t>(file["bytes"].number()),
                         old ? FileContents::Hash::sha256 : FileContents::Hash::xxh128,
                         file[old ? kSha256 : kXxh128].text()};
  }
  for (const auto& [name, node] : root["tensors"].items()) {
    CheckpointIndex::Tensor tensor{node["shape"].numbers(), read_dtype(node["dtype"]), {}};
    OSLO_CHECK(tensor.shape.size() <= kMostDimensions, node.where(), " has ", tensor.shape.size(),
               " dimensions, and at most ", kMostDimensions, " are read");
    for (const JsonNode& part : node["parts"].list()) {
      const std::string file = part["file"].text();
      OSLO_CHECK(index.files.count(file) > 0, part.where(), " lies in '", printable(file),
                 "', which is not listed");
      tensor.parts.push_back({file, read_cuts(part["cuts"], tensor.shape)});
    }
    OSLO_CHECK(!tensor.parts.empty(), node.where(), " has no parts");
    if (node.has("transposed")) tensor.transposed = read_transposed(node["transposed"], tensor);
    index.tensors.emplace(name, std::move(tensor));
  }
  for (const auto& [name, node] : root["ties"].items()) {
    const std::string tensor = node.text();
    OSLO_CHECK(index.tensors.count(tensor) > 0 && index.tensors.count(name) == 0, node.where(),
               " is a second name of '", printable(tensor), "', which does not fit the tensors");
    index.ties[name] = tensor;
  }
  if (root.has("optimizer")) index.optimizer = read_optimizer(root["optimizer"]);
  if (root.has("scheduler")) index.scheduler_steps = root["scheduler"]["steps"].number();
  if (root.has("random_states")) index.random_mesh = read_mesh(root["random_states"]["mesh"]);
  return index;
}

}  // namespace

void CheckpointIndex::add(const CheckpointIndex& other) {
  files.insert(other.files.begin(), other.files.end());
  ties.insert(other.ties.begin(), other.ties.end());
  for (const auto& [name, theirs] : other.tensors) {
    const auto [ours, fresh] = tensors.emplace(name, theirs);
    if (fresh) continue;
    OSLO_CHECK(ours->second.shape == theirs.shape && ours->second.dtype == theirs.dtype,
               "the ranks disagree on '", name, "': shape ", c10::IntArrayRef(ours->second.shape),
               " and ", c10::IntArrayRef(theirs.shape));
    auto& parts = ours->second.parts;
    parts.insert(parts.end(), theirs.parts.begin(), theirs.parts.end());
  }
}

void CheckpointIndex::write(const std::filesystem::path& path) const {
  Json json = to_json(*this);
  json["checksum"] = sha256(json.dump());
  const std::string text = json.dump(1) + "\n";
  OSLO_CHECK(text.size() <= kLimits.bytes, "cannot write ", path.string(), ": it would take ",
             text.size(), " bytes, and readers accept ", kLimits.bytes);
  OutputFile file(path);
  file.write(text.data(), text.size());
  file.close();
}

CheckpointIndex CheckpointIndex::read(const std::filesystem::path& path) {
  return read(InputFile(path));
}

CheckpointIndex CheckpointIndex::read(const InputFile& opened, std::string* checksum_read) try {
  const std::string file = printable_path(opened.path());
  Json json;
  {
    const std::string text = read_file(opened, kLimits.bytes);
    try {
      json = read_json(text, kLimits);
    } catch (const Error& error) {
      fail(file, " is cut or damaged: ", error.what());
    }
  }
  const JsonNode root(json, file);
  OSLO_CHECK(root["format"].text() == kFormat, file, " is no index of a checkpoint");
  const int64_t version = root["version"].number();
  OSLO_CHECK(version == kVersion, file, " has format version ", version,
             ", this library reads version ", kVersion, "; use the library that wrote it or newer");
  const std::string checksum = root["checksum"].text();
  json.erase("checksum");
  OSLO_CHECK(sha256(json.dump()) == checksum, file,
             " is damaged: its checksum does not fit; copy or save the checkpoint again");
  if (checksum_read != nullptr) *checksum_read = checksum;
  return from_json(root);
} catch (const std::bad_alloc&) {
  fail(printable_path(opened.path()), " takes more memory than there is");
}

CheckpointIndex::Cuts cuts_of(const LayoutPtr& layout) {
  CheckpointIndex::Cuts cuts;
  if (!layout) return cuts;
  for (const int axis : layout->nesting()) {
    const auto& [dim, cut] = (*layout)[axis];
    // The file holds the part in one place: other places' cuts (its family) are other files'.
    if (dim >= 0) cuts.push_back({dim, layout->group(axis)->rank(), cut->among({})});
  }
  return cuts;
}

std::string to_string(const CheckpointIndex::Cuts& cuts) {
  std::string text;
  for (const auto& [dim, rank, cut] : cuts) {
    text += c10::str(text.empty() ? "" : "; ", "dim ", dim, ": part ", rank, " of ");
    for (size_t i = 0; i < cut->runs().size(); ++i) {
      const auto& [repeat, pieces] = cut->runs()[i];
      text += i == 0 ? "" : ", ";
      if (repeat > 1) text += c10::str(repeat, " x (");
      for (size_t r = 0; r < pieces.size(); ++r) text += c10::str(r == 0 ? "" : "+", pieces[r]);
      if (repeat > 1) text += ")";
    }
  }
  return text.empty() ? "whole" : text;
}

std::string describe(const RankGrid& mesh) {
  if (!mesh.rank_order()) return factors(mesh.axes());
  return c10::str("tensor_parallel_size ", mesh.size("tensor"), ", pipeline_parallel_size ",
                  mesh.size("pipeline"));
}

}  // namespace oslo
