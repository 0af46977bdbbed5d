#include "parallelizers/plan/search/rates_file.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "mpu/base/error.h"

namespace oslo {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMachines = "oslo_rates";

/// Every entry of the file; null where it cannot be read.
nlohmann::json entries_in(const std::string& path) {
  std::ifstream file(path);
  auto json = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains(kMachines) || !json[kMachines].is_array()) return {};
  return json[kMachines];
}

}  // namespace

std::string kept_rates_path() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return std::string(cache) + "/oslo/rates.json";
  const char* const home = std::getenv("HOME");
  if (home != nullptr && *home != '\0') return std::string(home) + "/.cache/oslo/rates.json";
  return "";
}

std::optional<Rates> kept_rates(const std::string& path, const std::string& machine) {
  for (const nlohmann::json& entry : entries_in(path)) {
    try {
      Rates rates = Rates::from_json(entry, path);
      if (rates.machine == machine) return rates;
    } catch (const std::exception&) {
      continue;  // of another version, or damaged
    }
  }
  return std::nullopt;
}

bool keep_rates(const std::string& path, const Rates& rates) {
  if (path.empty()) return false;
  nlohmann::json kept = nlohmann::json::array();
  for (const nlohmann::json& entry : entries_in(path)) {
    const bool other = entry.is_object() && entry.value("machine", "") != rates.machine;
    if (other) kept.push_back(entry);
  }
  kept.push_back(rates.to_json());
  std::error_code failed;
  fs::create_directories(fs::path(path).parent_path(), failed);
  const std::string next = c10::str(path, ".", getpid());
  {
    std::ofstream file(next);
    file << nlohmann::json{{kMachines, kept}}.dump(1) << "\n";
    if (!file.flush()) failed = std::make_error_code(std::errc::io_error);
  }
  if (!failed) fs::rename(next, path, failed);
  if (failed) {
    std::error_code ignored;
    fs::remove(next, ignored);
  }
  return !failed;
}

Rates read_rates(const std::string& path) {
  OSLO_CHECK_AS(file, fs::is_regular_file(path), "rates: there is no file ", path);
  const nlohmann::json entries = entries_in(path);
  OSLO_CHECK_AS(file, entries.size() == 1, "rates: ", path, " holds the rates of ", entries.size(),
                " machines; it has to be JSON with \"", kMachines, "\": [ those of one ]");
  return Rates::from_json(entries[0], path);
}

}  // namespace oslo
