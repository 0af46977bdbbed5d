#include "oslo_cpp/exported/file/document.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"

namespace oslo::exported {

void Document::expected(std::string_view what) const {
  constexpr size_t kLongest = 80;
  // What holds others is not written out: it may be the whole graph.
  const std::string seen = value_->is_structured() ? std::string(value_->type_name())
                                                   : printable(value_->dump(), kLongest);
  fail_as(ErrorKind::file, where_, ": expected ", what, ", seen ", seen);
}

Document Document::member(const char* key) const {
  if (!value_->is_object()) expected("an object");
  const auto found = value_->find(key);
  OSLO_CHECK_AS(file, found != value_->end(), where_, ": it has no '", key, "'");
  return {*found, where_ + ", " + key};
}

std::optional<Document> Document::find(const char* key) const {
  if (!value_->is_object()) expected("an object");
  const auto found = value_->find(key);
  if (found == value_->end() || found->is_null()) return std::nullopt;
  return Document(*found, where_ + ", " + key);
}

std::pair<std::string, Document> Document::choice() const {
  if (!value_->is_object() || value_->size() != 1) expected("an object of one member");
  const auto only = value_->begin();
  return {only.key(), Document(*only, where_ + ", " + printable(only.key()))};
}

std::vector<std::pair<std::string, Document>> Document::members() const {
  if (!value_->is_object()) expected("an object");
  std::vector<std::pair<std::string, Document>> found;
  found.reserve(value_->size());
  for (const auto& [key, value] : value_->items()) {
    found.emplace_back(key, Document(value, where_ + ", " + printable(key)));
  }
  return found;
}

std::vector<Document> Document::items() const {
  if (!value_->is_array()) expected("a list");
  std::vector<Document> found;
  found.reserve(value_->size());
  for (const nlohmann::json& item : *value_) found.emplace_back(item, where_);
  return found;
}

const std::string& Document::text() const {
  if (!value_->is_string()) expected("a text");
  return value_->get_ref<const std::string&>();
}

int64_t Document::integer() const {
  if (!value_->is_number_integer()) expected("an integer");
  if (value_->is_number_unsigned() &&
      value_->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    expected("an integer of 64 bits");
  }
  return value_->get<int64_t>();
}

double Document::real() const {
  if (value_->is_number()) return value_->get<double>();
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (value_->is_string()) {
    const auto& word = value_->get_ref<const std::string&>();
    if (word == "Infinity") return kInfinity;
    if (word == "-Infinity") return -kInfinity;
    if (word == "NaN") return std::numeric_limits<double>::quiet_NaN();
  }
  expected("a number");
}

bool Document::truth() const {
  if (!value_->is_boolean()) expected("true or false");
  return value_->get<bool>();
}

std::vector<int64_t> Document::integers() const {
  std::vector<int64_t> found;
  for (const Document& item : items()) found.push_back(item.integer());
  return found;
}

}  // namespace oslo::exported
