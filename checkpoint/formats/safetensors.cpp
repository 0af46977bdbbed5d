#include "checkpoint/formats/safetensors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "checkpoint/formats/json/bounded_json.h"
#include "checkpoint/formats/tensors/tensor_bytes.h"
#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"

namespace oslo {
namespace {

using Json = nlohmann::json;

static_assert(std::endian::native == std::endian::little, "the format stores little-endian bytes");

// The reference implementation's limit: a larger header is damage, not a model.
constexpr uint64_t kLargestHeader = 100'000'000;
constexpr uint64_t kLengthBytes = 8;
// Of one tensor, or of the metadata.
constexpr JsonLimits kHeaderLimits = {.bytes = kLargestHeader, .values = 1 << 20, .depth = 4};
constexpr char kMetadata[] = "__metadata__";

struct DtypeName {
  c10::ScalarType dtype;
  const char* name;
};

constexpr DtypeName kDtypes[] = {
    {at::kDouble, "F64"},
    {at::kFloat, "F32"},
    {at::kHalf, "F16"},
    {at::kBFloat16, "BF16"},
    {at::kFloat8_e4m3fn, "F8_E4M3"},
    {at::kFloat8_e5m2, "F8_E5M2"},
    {at::kFloat8_e4m3fnuz, "F8_E4M3FNUZ"},
    {at::kFloat8_e5m2fnuz, "F8_E5M2FNUZ"},
    {at::kFloat8_e8m0fnu, "F8_E8M0"},
    {at::kLong, "I64"},
    {at::kInt, "I32"},
    {at::kShort, "I16"},
    {at::kChar, "I8"},
    {at::kUInt64, "U64"},
    {at::kUInt32, "U32"},
    {at::kUInt16, "U16"},
    {at::kByte, "U8"},
    {at::kBool, "BOOL"},
    {at::kComplexFloat, "C64"},
};

const char* name_of(c10::ScalarType dtype) {
  for (const DtypeName& known : kDtypes) {
    if (known.dtype == dtype) {
      return known.name;
    }
  }
  return nullptr;
}

/// A value for a message.
std::string shown(const Json& value) {
  return printable(value.dump());
}

/// The whole numbers of `value[field]`, each below 2^63.
std::vector<int64_t> numbers(const Json& value, const char* field, const std::string& where) {
  const auto found = value.find(field);
  OSLO_CHECK_AS(file, found != value.end() && found->is_array(), where, " has no list '", field,
                "'");
  std::vector<int64_t> out;
  for (const Json& number : *found) {
    OSLO_CHECK_AS(
        file, number.is_number_unsigned() && number.get<uint64_t>() <= uint64_t{INT64_MAX}, where,
        " has ", shown(number), " in '", field, "'; a whole number from 0 was expected");
    out.push_back(number.get<int64_t>());
  }
  return out;
}

}  // namespace

FileContents write_safetensors(const std::filesystem::path& path, const StateDict& state,
                               SafetensorsMetadata metadata) {
  TensorStream stream;
  for (const auto& [name, tensor] : state) {
    check_has_bytes(tensor, c10::str("cannot write '", name, "' to ", path.string(), ": "));
    stream.outlines.push_back({name, tensor.sizes().vec(), tensor.scalar_type()});
  }
  stream.give = [&](const std::string& name) { return state.at(name); };
  return write_safetensors(path, stream, std::move(metadata));
}

FileContents write_safetensors(const std::filesystem::path& path, const TensorStream& tensors,
                               SafetensorsMetadata metadata) {
  std::vector<const TensorOutline*> order;
  for (const TensorOutline& outline : tensors.outlines) {
    const std::string where =
        c10::str("cannot write '", outline.name, "' to ", path.string(), ": ");
    OSLO_CHECK_AS(file, outline.name != kMetadata, where, "the format keeps that name for itself");
    OSLO_CHECK_AS(file, name_of(outline.dtype) != nullptr, where, "safetensors has no dtype ",
                  c10::toString(outline.dtype), "; convert it or save as 'bin'");
    OSLO_CHECK_AS(file, outline.shape.size() <= kMostDimensions, where, "it has ",
                  outline.shape.size(), " dimensions, and at most ", kMostDimensions, " are read");
    order.push_back(&outline);
  }
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    const auto key = [](const auto* e) {
      return -static_cast<int64_t>(c10::elementSize(e->dtype));
    };
    return std::make_pair(key(a), std::cref(a->name)) < std::make_pair(key(b), std::cref(b->name));
  });

  metadata.emplace("format", "pt");
  Json header = Json::object();
  header[kMetadata] = metadata;
  uint64_t end = 0;
  for (const TensorOutline* outline : order) {
    const uint64_t begin = std::exchange(end, end + outline->bytes());
    header[outline->name] = {{"dtype", name_of(outline->dtype)},
                             {"shape", outline->shape},
                             {"data_offsets", {begin, end}}};
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception& e) {
    fail_as(ErrorKind::file, "cannot write the metadata of ", path.string(), ": ", e.what());
  }
  // Spaces keep the data aligned to the widest element.
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  const uint64_t length = text.size();
  OSLO_CHECK_AS(file, length <= kLargestHeader, "cannot write ", path.string(),
                ": its header would take ", length, " bytes, and readers accept ", kLargestHeader,
                "; save fewer tensors in one file");

  OutputFile file(path);
  file.write(&length, kLengthBytes);
  file.write(text.data(), text.size());
  for (const TensorOutline* outline : order) {
    const at::Tensor plain = to_plain_bytes(tensors.take(*outline));
    file.write(plain.const_data_ptr(), plain.nbytes());
  }
  file.close();
  return file.contents();
}

SafetensorsFile::SafetensorsFile(InputFile opened) try : file_(std::move(opened)) {
  const std::string file = printable_path(file_.path());
  OSLO_CHECK_AS(file, file_.size() >= kLengthBytes, file, " has ", file_.size(),
                " bytes and a safetensors file has at least 8: it is cut or no safetensors file");
  uint64_t length = 0;
  file_.read(&length, kLengthBytes, 0);
  OSLO_CHECK_AS(file, length <= kLargestHeader, file, " claims a header of ", length,
                " bytes, more than ", kLargestHeader, ": it is damaged or no safetensors file");
  OSLO_CHECK_AS(file, length <= file_.size() - kLengthBytes, file, " claims a header of ", length,
                " bytes, but ", file_.size() - kLengthBytes, " follow: the file is cut");
  std::string text(length, '\0');
  file_.read(text.data(), length, kLengthBytes);
  OSLO_CHECK_AS(file, text.starts_with('{'), file, ": the header of ", length,
                " bytes does not begin with '{': it is damaged or no safetensors file");
  data_start_ = kLengthBytes + length;
  try {
    // One by one, so that the header is never there as a tree.
    read_json_members(text, kHeaderLimits,
                      [&](std::string key, Json value) { add(std::move(key), value); });
  } catch (const Error& error) {
    fail_as(ErrorKind::file, file, ": the header: ", error.what());
  }
  check_layout(file_.size() - data_start_);
} catch (const std::bad_alloc&) {
  fail_as(ErrorKind::file, "the header of a safetensors file takes more memory than there is");
}

void SafetensorsFile::add(std::string key, const Json& value) {
  const std::string where = c10::str("tensor '", printable(key), "'");
  OSLO_CHECK_AS(file, value.is_object(), where, " is not described by a JSON object");
  if (key == kMetadata) {
    for (const auto& [name, entry] : value.items()) {
      OSLO_CHECK_AS(file, entry.is_string(), "the metadata '", printable(name), "' is not a text");
      metadata_.emplace(name, entry.get<std::string>());
    }
    return;
  }
  const auto dtype = value.find("dtype");
  OSLO_CHECK_AS(file, dtype != value.end() && dtype->is_string(), where, " has no dtype");
  const auto* known = std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const auto& d) {
    return dtype->template get_ref<const std::string&>() == d.name;
  });
  OSLO_CHECK_AS(file, known != std::end(kDtypes), where, " has the dtype ", shown(*dtype),
                ", which LibTorch has no equal of");
  std::vector<int64_t> shape = numbers(value, "shape", where);
  const std::vector<int64_t> offsets = numbers(value, "data_offsets", where);
  OSLO_CHECK_AS(file, shape.size() <= kMostDimensions, where, " has ", shape.size(),
                " dimensions, and at most ", kMostDimensions, " are read");
  OSLO_CHECK_AS(file, offsets.size() == 2 && offsets[0] <= offsets[1], where, " has data_offsets ",
                shown(value["data_offsets"]), "; [begin, end] was expected");
  const std::optional<uint64_t> bytes = byte_count(shape, c10::elementSize(known->dtype));
  const uint64_t span = static_cast<uint64_t>(offsets[1] - offsets[0]);
  OSLO_CHECK_AS(file, bytes == span, where, " of shape ", shown(value["shape"]), " and dtype ",
                known->name, " does not take the ", span, " bytes of its data_offsets ",
                shown(value["data_offsets"]));
  keys_.push_back(key);
  entries_.emplace(std::move(key),
                   Entry{std::move(shape), known->dtype, static_cast<uint64_t>(offsets[0]),
                         static_cast<uint64_t>(offsets[1])});
}

void SafetensorsFile::check_layout(uint64_t data_bytes) {
  const std::string file = printable_path(path());
  std::sort(keys_.begin(), keys_.end(), [&](const std::string& a, const std::string& b) {
    const Entry& left = entries_.at(a);
    const Entry& right = entries_.at(b);
    return std::tie(left.begin, left.end, a) < std::tie(right.begin, right.end, b);
  });
  uint64_t reached = 0;
  for (const std::string& key : keys_) {
    const Entry& entry = entries_.at(key);
    OSLO_CHECK_AS(file, entry.begin == reached, file, ": tensor '", printable(key),
                  "' begins at data byte ", entry.begin, ", but the one before it ends at ",
                  reached, ": the two ", entry.begin < reached ? "overlap" : "leave a hole");
    reached = entry.end;
  }
  OSLO_CHECK_AS(file, reached <= data_bytes, file, ": its tensors take ", reached, " bytes up to '",
                keys_.empty() ? "" : printable(keys_.back()), "', but ", data_bytes,
                " follow the header: the file is cut; copy or save it again");
  OSLO_CHECK_AS(file, reached == data_bytes, file, ": its tensors take ", reached, " bytes, but ",
                data_bytes, " follow the header: ", data_bytes - reached, " belong to no tensor");
}

const SafetensorsFile::Entry& SafetensorsFile::entry(const std::string& key) const {
  const auto found = entries_.find(key);
  OSLO_CHECK_AS(file, found != entries_.end(), printable_path(path()), " has no tensor '",
                printable(key), "' among its ", keys_.size());
  return found->second;
}

at::Tensor SafetensorsFile::read(const std::string& key) const {
  const Entry& found = entry(key);
  const at::Tensor tensor =
      read_elements(key, 0, c10::multiply_integers(found.shape)).view(found.shape);
  if (found.dtype == at::kBool) {
    check_bool_bytes(tensor.const_data_ptr(), found.end - found.begin,
                     c10::str(printable_path(path()), ": tensor '", printable(key), "'"));
  }
  return tensor;
}

at::Tensor SafetensorsFile::read_elements(const std::string& key, int64_t first,
                                          int64_t count) const try {
  const Entry& found = entry(key);
  const uint64_t size = c10::elementSize(found.dtype);
  at::Tensor elements = at::empty({count}, at::TensorOptions(found.dtype).device(at::kCPU));
  file_.read(elements.mutable_data_ptr(), static_cast<uint64_t>(count) * size,
             data_start_ + found.begin + static_cast<uint64_t>(first) * size);
  return elements;
} catch (const c10::Error& error) {
  // No memory for it.
  fail_as(ErrorKind::file, printable_path(path()), ": tensor '", printable(key),
          "' cannot be read: ", error.what_without_backtrace());
}

StateDict read_safetensors(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  StateDict state;
  for (const std::string& key : file.keys()) {
    state.insert(key, file.read(key));
  }
  return state;
}

}  // namespace oslo
