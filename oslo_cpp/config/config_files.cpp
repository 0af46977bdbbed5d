#include "oslo_cpp/config/config_files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"
#include "oslo_cpp/config/config_json.h"

namespace oslo {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kBase = "base";
constexpr int kMostFiles = 256;

std::string read_text(const std::string& path) {
  const std::string named = config_file_name(path);
  OSLO_CHECK_AS(file, path.find('\0') == std::string::npos, named,
                ": no file has a NUL byte in its name");
  std::error_code ignored;
  OSLO_CHECK_AS(file, !fs::is_directory(path, ignored), named, " is a folder: name a JSON file");
  std::ifstream file(path, std::ios::binary);
  OSLO_CHECK_AS(file, file.good(), named,
                " cannot be opened: check that it exists and may be read");
  // One byte more than is read, and no end is waited for: pipes have no size, and devices no end.
  std::string text(kConfigLimits.bytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  OSLO_CHECK_AS(file, text.size() <= kConfigLimits.bytes, named, " has more than the ",
                kConfigLimits.bytes, " bytes that are read at most");
  return text;
}

void merge(Json& under, const Json& over) {
  for (const auto& [key, value] : over.items()) {
    if (value.is_object() && under.contains(key) && under[key].is_object()) {
      merge(under[key], value);
    } else {
      under[key] = value;
    }
  }
}

std::vector<std::string> bases_of(const Json& document) {
  if (!document.is_object() || !document.contains(kBase)) return {};
  const Json& base = document[kBase];
  const Json list = base.is_array() ? base : Json::array({base});
  std::vector<std::string> paths;
  for (const Json& each : list) {
    OSLO_CHECK_AS(config, each.is_string() && !each.get_ref<const std::string&>().empty(),
                  "'base': expected the path of a file, or an array of paths; seen ",
                  describe(each));
    paths.push_back(each.get<std::string>());
  }
  return paths;
}

class FileReader {
 public:
  explicit FileReader(const std::function<void(Json&)>& check) : check_(check) {}

  Json read(const std::string& path) {
    OSLO_CHECK_AS(config, ++files_ <= kMostFiles, config_file_name(open_.front().shown),
                  ": its bases are more than ", kMostFiles, " files");
    const std::string text = read_text(path);
    enter(path);
    Json own;
    std::vector<std::string> bases;
    with_source(config_file_name(path), [&] {
      own = read_ordered_json(text, kConfigLimits);
      bases = bases_of(own);
      if (own.is_object()) own.erase(kBase);
      check_(own);
    });
    Json all = Json::object();
    for (const std::string& base : bases) {
      merge(all, read((fs::path(path).parent_path() / base).lexically_normal().string()));
    }
    merge(all, own);
    open_.pop_back();
    return all;
  }

 private:
  struct Open {
    fs::path path;
    std::string shown;
  };

  void enter(const std::string& path) {
    std::error_code ignored;
    const fs::path whole = fs::weakly_canonical(path, ignored);
    const auto again = std::find_if(open_.begin(), open_.end(),
                                    [&](const Open& each) { return each.path == whole; });
    if (again != open_.end()) {
      std::string circle;
      for (auto each = again; each != open_.end(); ++each) {
        circle += printable_path(each->shown) + " -> ";
      }
      fail_as(ErrorKind::config, config_file_name(open_.front().shown),
              ": its bases go in a circle: ", circle, printable_path(path),
              "; take \"base\" out of one of them");
    }
    open_.push_back({whole, path});
  }

  const std::function<void(Json&)>& check_;
  std::vector<Open> open_;
  int files_ = 0;
};

}  // namespace

std::string config_file_name(const std::string& path) {
  return "config file '" + printable_path(path) + "'";
}

Json read_config_files(const std::string& path, const std::function<void(Json&)>& check) {
  return FileReader(check).read(path);
}

void check_no_base(const Json& document) {
  OSLO_CHECK_AS(config, !document.is_object() || !document.contains(kBase),
                "'base' names files beside the one that it stands in, and this text is no file: "
                "read a file, by Config::from_file, or leave 'base' out");
}

}  // namespace oslo
