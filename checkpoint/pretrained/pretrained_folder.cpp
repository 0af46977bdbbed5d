#include "checkpoint/pretrained/pretrained_folder.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "checkpoint/formats/file_format.h"
#include "checkpoint/formats/json/bounded_json.h"
#include "checkpoint/formats/tensors/tensor_bytes.h"
#include "checkpoint/index/checkpoint_index.h"
#include "checkpoint/pretrained/family.h"
#include "checkpoint/pretrained/weight_index.h"
#include "checkpoint/regions/file_overlap.h"
#include "checkpoint/storage/file_io.h"
#include "checkpoint/storage/outside_text.h"
#include "checkpoint/storage/staging_directory.h"
#include "mpu/base/error.h"

namespace oslo {
namespace {

namespace fs = std::filesystem;

constexpr JsonLimits kConfigLimits = {.bytes = 16 << 20, .values = 1 << 20, .depth = 32};

bool has_file(const fs::path& folder, const std::string& name) {
  std::error_code ignored;
  return fs::exists(folder / name, ignored);
}

/// Hugging Face's name for the index of a model that lies in several files.
std::string index_file(Format format) {
  return model_file(format) + ".index.json";
}

/// Where a folder is while a save that replaces it is between its two steps.
fs::path committed(const fs::path& path) {
  std::error_code unknown;
  return path.empty() || fs::exists(path, unknown) || unknown ? path : find_committed(path);
}

/// Whether a folder has a config.json, and tensors that no save of this library put there.
bool has_foreign_tensors(const fs::path& path) {
  if (path.empty() || !has_file(path, kConfigName) || has_file(path, kIndexName)) return false;
  for (const FormatNames& names : kFormats) {
    const std::string file = model_file(names.format);
    if (!has_file(path, file)) continue;
    return !file_format(names.format).holds_texts ||
           open_tensor_file(InputFile(path / file))->metadata().count(kIndexName) == 0;
  }
  return std::any_of(std::begin(kFormats), std::end(kFormats), [&](const FormatNames& names) {
    return has_file(path, index_file(names.format));
  });
}

/// Whether they lie in several files, which this library's do not without an index of its own.
bool has_several_files(const fs::path& path) {
  return std::none_of(std::begin(kFormats), std::end(kFormats), [&](const FormatNames& names) {
    return has_file(path, model_file(names.format));
  });
}

bool says_model_type(const nlohmann::json& config) {
  const auto type = config.find("model_type");
  return type != config.end() && type->is_string() && !type->get_ref<const std::string&>().empty();
}

}  // namespace

bool is_pretrained_folder(const fs::path& named) {
  const fs::path path = committed(named);
  if (!has_foreign_tensors(path)) return false;
  return has_several_files(path) || find_family(read_pretrained_config(path)) != nullptr;
}

bool is_pretrained_folder_of_any_family(const fs::path& named) {
  const fs::path path = committed(named);
  return has_foreign_tensors(path) &&
         (has_several_files(path) || says_model_type(read_pretrained_config(path)));
}

nlohmann::json read_pretrained_config(const fs::path& folder) {
  return read_pretrained_config(InputFile(folder / kConfigName));
}

nlohmann::json read_pretrained_config(const InputFile& file) {
  try {
    nlohmann::json config = read_json(read_file(file, kConfigLimits.bytes), kConfigLimits);
    OSLO_CHECK_AS(file, config.is_object(), "it is no JSON object");
    return config;
  } catch (const Error& error) {
    fail_as(ErrorKind::file, printable_path(file.path()), ": ", error.what());
  }
}

PretrainedFolder::PretrainedFolder(fs::path path) try : path_(std::move(path)) {
  read_in_place(
      path_, [&] { open(); }, [&] { return folder_ != nullptr; }, [&] { return in_place(); });
} catch (const fs::filesystem_error& error) {
  fail_as(ErrorKind::file, "cannot read the folder ", printable_path(error.path1()), ": ",
          error.code().message());
}

void PretrainedFolder::open() {
  tensors_.clear();
  files_.clear();
  folder_.reset();
  OSLO_CHECK_AS(file, fs::is_directory(committed(path_)), "there is no folder ",
                printable_path(path_), "; give one with config.json and ",
                model_file(kDefaultFormat));
  folder_ = std::make_unique<OpenFolder>(committed(path_));
  folder_->hold(kConfigName);
  config_ = std::make_unique<nlohmann::json>(read_pretrained_config(config_file()));
  for (const FormatNames& names : kFormats) {
    const std::string file = model_file(names.format), index = index_file(names.format);
    if (folder_->has(file)) {
      open(file);
      return;
    }
    if (folder_->has(index)) {
      open_all(index);
      return;
    }
  }
  fail_as(ErrorKind::file, "there is no model in ", printable_path(path_), ": it has neither ",
          each_format([](const FormatNames& names) { return model_file(names.format); }, " nor "),
          ", nor an index of several such files");
}

InputFile PretrainedFolder::config_file() const {
  return folder_->open(kConfigName);
}

PretrainedFolder::~PretrainedFolder() = default;

void PretrainedFolder::open(const std::string& name) {
  std::unique_ptr<TensorFile>& file = files_[name];
  folder_->hold(name);
  file = open_tensor_file(folder_->open(name));
  for (const std::string& tensor : file->keys()) {
    const TensorFile::Entry entry = file->entry(tensor);
    const auto [known, fresh] = tensors_.emplace(tensor, Entry{entry.shape, entry.dtype, name});
    OSLO_CHECK_AS(file, fresh, printable_path(path_), " has the tensor '", printable(tensor),
                  "' in ", printable(known->second.file), " and in ", printable(name));
  }
}

void PretrainedFolder::open_all(const std::string& index) {
  folder_->hold(index);
  const InputFile opened = folder_->open(index);
  const std::map<std::string, std::string> listed = WeightIndex::read(opened).files;
  for (const auto& [_, file] : listed) {
    if (files_.count(file) == 0) open(file);
  }
  const std::string where = printable_path(opened.path());
  for (const auto& [tensor, file] : listed) {
    const auto found = tensors_.find(tensor);
    OSLO_CHECK_AS(file, found != tensors_.end() && found->second.file == file, where,
                  " says that '", printable(tensor), "' lies in ", printable(file),
                  ", where it is not");
  }
  for (const auto& [tensor, entry] : tensors_) {
    OSLO_CHECK_AS(file, listed.count(tensor) > 0, where, " does not list '", printable(tensor),
                  "', which lies in ", printable(entry.file));
  }
}

at::Tensor PretrainedFolder::read(const std::string& name, const Region& wanted,
                                  bool transposed) const {
  const Entry& entry = tensors_.at(name);
  at::Tensor into = at::empty(wanted.sizes(), at::TensorOptions(entry.dtype).device(at::kCPU));
  std::vector<int64_t> shape = entry.shape;
  if (transposed) std::swap(shape[0], shape[1]);
  copy_from_file(*files_.at(entry.file), name, overlap_of(Region(shape), wanted), transposed, into);
  if (entry.dtype == at::kBool) {
    check_bool_bytes(into.const_data_ptr(), into.nbytes(),
                     c10::str(printable_path(path_ / entry.file), ": '", printable(name), "'"));
  }
  return into;
}

std::string PretrainedFolder::identity() const {
  std::string text = config_->dump() + "\n";
  for (const auto& [name, entry] : tensors_) {
    text +=
        c10::str(name, " ", entry.file, " ", entry.dtype, " ", c10::IntArrayRef(entry.shape), "\n");
  }
  return text;
}

}  // namespace oslo
