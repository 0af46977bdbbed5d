#include <ATen/core/Tensor.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>

#include "checkpoint/directory/read_together.h"
#include "checkpoint/folders/folder_checks.h"
#include "checkpoint/folders/rewrite_folder.h"
#include "checkpoint/folders/size_text.h"
#include "checkpoint/pretrained/pretrained_folder.h"
#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"

namespace oslo {
namespace {

namespace fs = std::filesystem;

uint64_t bytes_of_shape(const std::vector<int64_t>& shape, c10::ScalarType dtype) {
  return static_cast<uint64_t>(c10::multiply_integers(shape)) * c10::elementSize(dtype);
}

std::string shape_text(const std::vector<int64_t>& shape, c10::ScalarType dtype) {
  return c10::str(c10::IntArrayRef(shape), " ", dtype);
}

/// Names in a column, what belongs to them behind it.
class Columns {
 public:
  void add(const std::string& name, const std::string& rest) { lines_.emplace_back(name, rest); }
  void print(std::ostream& out, const char* title) const {
    if (lines_.empty()) return;
    size_t width = 0;
    for (const auto& [name, _] : lines_) width = std::max(width, std::min<size_t>(name.size(), 60));
    out << title << "\n";
    for (const auto& [name, rest] : lines_) {
      out << "  " << name << std::string(name.size() < width ? width - name.size() : 0, ' ') << "  "
          << rest << "\n";
    }
  }

 private:
  std::vector<std::pair<std::string, std::string>> lines_;
};

std::string describe_pretrained(const fs::path& path) {
  const PretrainedFolder folder(path);
  Columns tensors;
  uint64_t bytes = 0;
  for (const auto& [name, entry] : folder.tensors()) {
    tensors.add(printable(name),
                shape_text(entry.shape, entry.dtype) + "  " + printable(entry.file));
    bytes += bytes_of_shape(entry.shape, entry.dtype);
  }
  std::ostringstream out;
  const auto type = folder.config().find("model_type");
  out << printable_path(path) << ": a folder of Hugging Face's";
  if (type != folder.config().end() && type->is_string()) {
    out << ", " << printable(type->get<std::string>());
  }
  out << "; " << folder.tensors().size() << " tensors, " << size_text(static_cast<double>(bytes))
      << "\n";
  tensors.print(out, "tensors");
  return out.str();
}

std::string kind_of(const CheckpointIndex& index) {
  size_t parts = 0;
  bool cut = false;
  for (const auto& [_, tensor] : index.tensors) {
    parts = std::max(parts, tensor.parts.size());
    for (const auto& part : tensor.parts) cut = cut || !part.cuts.empty();
  }
  const bool parallel = std::any_of(index.files.begin(), index.files.end(), [](const auto& file) {
    return file.first.starts_with("pytorch_model_");
  });
  if (!parallel && !cut) return "a merged checkpoint";
  return "a parallel checkpoint of " + describe(index.mesh);
}

}  // namespace

VerifiedFolder verify_folder(const fs::path& path, const TellProgress& tell) {
  VerifiedFolder verified;
  if (is_pretrained_folder_of_any_family(path)) {
    const PretrainedFolder folder(path);
    uint64_t bytes = 0;
    for (const auto& [_, entry] : folder.tensors())
      bytes += bytes_of_shape(entry.shape, entry.dtype);
    FolderProgress progress(tell, bytes);
    for (const auto& [name, entry] : folder.tensors()) {
      progress.add(folder.read(name, Region(entry.shape), false).nbytes());
      ++verified.tensors;
    }
    verified.bytes = bytes;
    return verified;
  }
  std::optional<CheckpointFolder> folder;
  const auto open = [&] {
    folder.emplace(path);
    return folder->identity();
  };
  const auto read = [&] {
    if (!folder->warning().empty()) std::cerr << "oslo: " << folder->warning() << std::endl;
    verified = VerifiedFolder();
    for (const auto& [_, tensor] : folder->index().tensors) {
      verified.bytes += bytes_of_shape(tensor.shape, tensor.dtype);
    }
    FolderProgress progress(tell, verified.bytes + folder->hashed_bytes());
    verify_hashes(*folder, progress);
    verified.files = folder->hashed().size();
    for (const auto& [name, tensor] : folder->index().tensors) {
      progress.add(folder->read(name, Region(tensor.shape)).nbytes());
      ++verified.tensors;
    }
  };
  read_alone(path, {open, nullptr, [&] { return folder->in_place(); }, read,
                    [&] { return folder->is_as_opened(); }});
  return verified;
}

std::string describe_folder(const fs::path& path) {
  if (is_pretrained_folder_of_any_family(path)) return describe_pretrained(path);
  const CheckpointFolder folder(path);
  const CheckpointIndex& index = folder.index();
  std::ostringstream out;
  Columns files, tensors, ties;
  uint64_t bytes = 0;
  for (const auto& [name, file] : index.files) {
    files.add(printable(name), size_text(static_cast<double>(file.bytes)));
  }
  for (const auto& [name, tensor] : index.tensors) {
    bytes += bytes_of_shape(tensor.shape, tensor.dtype);
    const CheckpointIndex::Cuts& cuts = tensor.parts.front().cuts;
    tensors.add(printable(name), shape_text(tensor.shape, tensor.dtype) + "  " +
                                     (cuts.empty() ? "whole" : to_string(cuts)) +
                                     (tensor.transposed ? ", as its transpose" : ""));
  }
  for (const auto& [name, tensor] : index.ties) ties.add(printable(name), printable(tensor));
  out << printable_path(folder.path()) << ": " << kind_of(index) << "; " << index.tensors.size()
      << " tensors, " << size_text(static_cast<double>(bytes)) << "\n";
  if (index.optimizer) out << "with the state of " << printable(index.optimizer->kind) << "\n";
  files.print(out, "files");
  tensors.print(out, "tensors, as their first parts are cut");
  ties.print(out, "second names");
  if (!folder.warning().empty()) out << folder.warning() << "\n";
  return out.str();
}

}  // namespace oslo
