#include "oslo_cpp/exported/file/archive.h"

#include <ATen/ATen.h>
#include <caffe2/serialize/versions.h>

#include "checkpoint/formats/json/bounded_json.h"
#include "checkpoint/formats/tensors/tensor_bytes.h"
#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"
#include "oslo_cpp/exported/file/codes.h"

namespace oslo::exported {
namespace {

constexpr const char* kProgram = "models/model.json";
// A graph of 20,000 operators takes 30 MB and half a million values.
constexpr JsonLimits kProgramLimits{
    .bytes = size_t{1} << 28, .values = size_t{1} << 23, .depth = 96};
constexpr JsonLimits kConfigLimits{
    .bytes = size_t{1} << 28, .values = size_t{1} << 23, .depth = 12};
constexpr uint64_t kLongestWord = 32;

// torch/_export/serde/schema.py of the LibTorch that this is built with.
constexpr int64_t kSchemaMajor = 8;
constexpr int64_t kSchemaMinor = 17;

std::vector<int64_t> numbers_of(const Document& list) {
  std::vector<int64_t> found;
  for (const Document& item : list.items()) {
    const auto [kind, value] = item.choice();
    OSLO_CHECK_AS(file, kind == "as_int", value.where(),
                  ": the sizes of a stored tensor are numbers");
    found.push_back(value.integer());
    OSLO_CHECK_AS(file, found.back() >= 0, value.where(), ": ", found.back(), " is negative");
  }
  OSLO_CHECK_AS(file, found.size() <= kMostDimensions, list.where(), ": ", found.size(),
                " dimensions are more than the ", kMostDimensions, " that a tensor can have");
  return found;
}

/// Bytes from the start of the storage to the end of the tensor; throws where they overflow.
uint64_t reach(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
               int64_t offset, uint64_t width, const std::string& where) {
  uint64_t last = static_cast<uint64_t>(offset);
  bool fits = true;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return 0;
    uint64_t step = 0;
    fits &= !__builtin_mul_overflow(static_cast<uint64_t>(sizes[i] - 1),
                                    static_cast<uint64_t>(strides[i]), &step);
    fits &= !__builtin_add_overflow(last, step, &last);
  }
  uint64_t bytes = 0;
  fits &= !__builtin_add_overflow(last, uint64_t{1}, &last);
  fits &= !__builtin_mul_overflow(last, width, &bytes);
  OSLO_CHECK_AS(file, fits, where, ": its sizes overflow");
  return bytes;
}

}  // namespace

Archive::Archive(const std::filesystem::path& path) : file_(printable_path(path)), zip_(path) {
  check_format();
  const auto read = [&](const std::string& record, const JsonLimits& limits) {
    try {
      return read_json(zip_.read_text(record, limits.bytes), limits);
    } catch (const Error& error) {
      const std::string said = error.what();
      if (said.find(file_) != std::string::npos) throw;
      fail_as(ErrorKind::file, file_, ", ", record, ": ", said);
    }
  };
  program_ = read(kProgram, kProgramLimits);
  check_versions();
  for (const auto& [folder, config] :
       {std::pair{"data/weights/", "data/weights/model_weights_config.json"},
        std::pair{"data/constants/", "data/constants/model_constants_config.json"}}) {
    if (zip_.contains(config)) describe(folder, read(config, kConfigLimits));
  }
}

void Archive::describe(const std::string& folder, const nlohmann::json& config) {
  for (const auto& [name, entry] :
       Document(config, file_ + ", " + folder).member("config").members()) {
    OSLO_CHECK_AS(file, !entry.member("use_pickle").truth(), entry.where(),
                  ": it is a pickled object, which only Python can open; keep objects and tensor "
                  "subclasses out of the exported module");
    const Document meta = entry.member("tensor_meta");
    layout_of(meta.member("layout"));
    Description tensor{folder + entry.member("path_name").text(),
                       scalar_type_of(meta.member("dtype")),
                       numbers_of(meta.member("sizes")),
                       numbers_of(meta.member("strides")),
                       meta.member("storage_offset").member("as_int").integer(),
                       meta.member("requires_grad").truth()};
    OSLO_CHECK_AS(file, tensor.sizes.size() == tensor.strides.size() && tensor.offset >= 0,
                  entry.where(), ": its sizes, strides and offset do not go together");
    OSLO_CHECK_AS(file, tensors_.emplace(name, std::move(tensor)).second, file_, ": the tensor '",
                  printable(name), "' is there twice, as a weight and as a constant");
  }
}

void Archive::check_format() const {
  const char* advice = "; save it with torch.export.save of PyTorch 2.11";
  OSLO_CHECK_AS(file, zip_.contains("archive_format"), file_,
                " is no exported program: it has no record archive_format", advice);
  const std::string format = zip_.read_text("archive_format", kLongestWord);
  const std::string version =
      zip_.contains("archive_version") ? zip_.read_text("archive_version", kLongestWord) : "";
  OSLO_CHECK_AS(file, format == "pt2" && version == "0", file_, " has archive format '",
                printable(format), "' of version '", printable(version),
                "', and 'pt2' of version '0' is what is read", advice);
  OSLO_CHECK_AS(file, zip_.contains(kProgram), file_, " has no ", kProgram,
                ": it holds no program, or several; save one with torch.export.save");
}

void Archive::check_versions() const {
  const Document schema = program().member("schema_version");
  const int64_t major = schema.member("major").integer(), minor = schema.member("minor").integer();
  OSLO_CHECK_AS(file, major == kSchemaMajor && minor >= 0 && minor <= kSchemaMinor, file_,
                " has schema version ", major, ".", minor, ", and ", kSchemaMajor, ".0 to ",
                kSchemaMajor, ".", kSchemaMinor,
                " are read; export and save the model with PyTorch 2.11");
  for (const auto& [name, version] : program().member("opset_version").members()) {
    constexpr auto kNewest = static_cast<int64_t>(caffe2::serialize::kProducedFileFormatVersion);
    OSLO_CHECK_AS(file, name != "aten" || version.integer() <= kNewest, file_, " uses version ",
                  version.integer(), " of the operators, and this LibTorch has ", kNewest,
                  "; export and save the model with PyTorch 2.11");
  }
}

const Archive::Description& Archive::described(const std::string& name) const {
  const auto found = tensors_.find(name);
  OSLO_CHECK_AS(file, found != tensors_.end(), file_, " has no tensor '", printable(name),
                "', which its program names");
  return found->second;
}

const c10::Storage& Archive::storage(const std::string& record) {
  const auto known = storages_.find(record);
  if (known != storages_.end()) return known->second;
  const uint64_t bytes = zip_.size(record);
  // Records may lie over each other, but what torch.export.save wrote cannot outgrow the file.
  loaded_bytes_ += bytes;
  OSLO_CHECK_AS(file, loaded_bytes_ <= zip_.file_size(), file_, ": its tensors claim ",
                loaded_bytes_, " bytes in a file of ", zip_.file_size(), ": it is damaged");
  const at::Tensor data = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
  zip_.read(record, data.mutable_data_ptr());
  return storages_.emplace(record, data.storage()).first->second;
}

at::Tensor Archive::tensor(const std::string& name) {
  const Description& wanted = described(name);
  const auto known = loaded_.find(wanted);
  if (known != loaded_.end()) return known->second;
  const std::string where = c10::str(file_, ": tensor '", printable(name), "'");
  const c10::Storage& bytes = storage(wanted.record);
  const uint64_t needed =
      reach(wanted.sizes, wanted.strides, wanted.offset, c10::elementSize(wanted.type), where);
  OSLO_CHECK_AS(file, needed <= bytes.nbytes(), where, " reaches over ", needed, " bytes, and ",
                wanted.record, " has ", bytes.nbytes());
  if (wanted.type == c10::kBool) check_bool_bytes(bytes.data(), bytes.nbytes(), where + ": ");
  at::Tensor tensor =
      at::empty({0}, wanted.type).set_(bytes, wanted.offset, wanted.sizes, wanted.strides);
  const bool differentiable = c10::isFloatingType(wanted.type) || c10::isComplexType(wanted.type);
  OSLO_CHECK_AS(file, differentiable || !wanted.requires_grad, where,
                " has a gradient, and elements of ", wanted.type, ", which cannot have one");
  tensor.set_requires_grad(wanted.requires_grad);
  loaded_.emplace(wanted, tensor);
  return tensor;
}

}  // namespace oslo::exported
