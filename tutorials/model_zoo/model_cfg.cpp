#include "model_cfg.h"

#include <mpu/base/error.h>
#include <mpu/base/words/nearest_name.h>

#include <algorithm>

namespace zoo {
namespace {

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

void check_keys(const nlohmann::json& object, const std::string& path,
                const std::vector<std::string>& known) {
  for (const auto& item : object.items()) {
    if (std::count(known.begin(), known.end(), item.key()) > 0) continue;
    const std::string* const meant = oslo::name_meant(known, item.key());
    oslo::fail_as(oslo::ErrorKind::config, "unknown key '", path, ".", item.key(), "'; ",
                  meant == nullptr
                      ? "the names are " + joined(known)
                      : "the nearest name is '" + *meant + "' (of " + joined(known) + ")");
  }
}

void fail_wrong(const std::string& path, const std::string& what) {
  oslo::fail_as(oslo::ErrorKind::config, "'", path, "': ", what);
}

nlohmann::json config_json(const nlohmann::json& cfg, nlohmann::json defaults, const Names& names) {
  std::vector<std::string> known;
  for (const auto& item : defaults.items()) known.push_back(item.key());
  for (const auto& [libai, own] : names) known.push_back(libai);
  check_keys(cfg, "model.cfg", known);
  for (const auto& item : cfg.items()) {
    const auto alias = std::find_if(names.begin(), names.end(),
                                    [&](const auto& each) { return each.first == item.key(); });
    const std::string& own = alias == names.end() ? item.key() : alias->second;
    if (alias != names.end() && cfg.contains(own)) {
      fail_wrong("model.cfg", "'" + item.key() + "' and '" + own +
                                  "' are two names of one size: keep one of them");
    }
    defaults[own] = item.value();
  }
  return defaults;
}

}  // namespace zoo
