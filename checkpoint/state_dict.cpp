#include "checkpoint/state_dict.h"

#include "mpu/error.h"

namespace oslo {
namespace {

/// Whether `text` is UTF-8 as RFC 3629 has it: no overlong forms, no surrogates, nothing above
/// U+10FFFF.
bool is_utf8(const std::string& text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i++]);
    if (lead < 0x80) {
      continue;
    }
    const int tail = lead >= 0xC2 && lead < 0xE0   ? 1
                     : lead >= 0xE0 && lead < 0xF0 ? 2
                     : lead >= 0xF0 && lead < 0xF5 ? 3
                                                   : 0;
    if (tail == 0 || text.size() - i < static_cast<size_t>(tail)) {
      return false;
    }
    char32_t point = lead & (0x3F >> tail);
    for (int k = 0; k < tail; ++k) {
      const auto byte = static_cast<unsigned char>(text[i++]);
      if ((byte & 0xC0) != 0x80) {
        return false;
      }
      point = (point << 6) | (byte & 0x3F);
    }
    if ((tail == 2 && (point < 0x800 || (point >= 0xD800 && point < 0xE000))) ||
        (tail == 3 && (point < 0x10000 || point > 0x10FFFF))) {
      return false;
    }
  }
  return true;
}

}  // namespace

StateDict::StateDict(std::initializer_list<Entry> entries) {
  for (const Entry& entry : entries) {
    insert(entry.first, entry.second);
  }
}

void StateDict::insert(std::string name, at::Tensor tensor) {
  OSLO_CHECK(is_utf8(name), "the tensor name '", name, "' is not valid UTF-8; rename the tensor");
  OSLO_CHECK(tensor.defined(), "the tensor '", name, "' is undefined; leave it out of the state");
  const bool fresh = index_.emplace(name, entries_.size()).second;
  OSLO_CHECK(fresh, "the tensor name '", name, "' appears twice in one state; names must differ");
  entries_.emplace_back(std::move(name), std::move(tensor));
}

const at::Tensor* StateDict::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &entries_[found->second].second;
}

const at::Tensor& StateDict::at(const std::string& name) const {
  const at::Tensor* tensor = find(name);
  OSLO_CHECK(tensor != nullptr, "the state has no tensor '", name, "' among its ", size());
  return *tensor;
}

}  // namespace oslo
