#include "checkpoint/checkpoint_series.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_index.h"
#include "checkpoint/storage/file_io.h"
#include "checkpoint/storage/outside_text.h"
#include "checkpoint/storage/staging_directory.h"
#include "mpu/error.h"

namespace oslo {
namespace {

namespace fs = std::filesystem;

constexpr char kLatest[] = "latest";
constexpr uint64_t kLongestName = 64;

std::string name_of(int64_t step) {
  char name[32];
  std::snprintf(name, sizeof(name), "step-%06lld", static_cast<long long>(step));
  return name;
}

/// The step of a folder's name, where it is one of a series.
std::optional<int64_t> step_of(const std::string& name) {
  static const std::regex form("step-([0-9]{6,18})");
  std::smatch parts;
  if (!std::regex_match(name, parts, form)) return std::nullopt;
  const int64_t step = std::stoll(parts[1]);
  if (name != name_of(step)) return std::nullopt;
  return step;
}

/// The folders of steps, by step, and whether each is complete. Links are followed; those that lead
/// nowhere are none.
std::map<int64_t, bool> steps_in(const fs::path& series) {
  std::map<int64_t, bool> steps;
  for (const fs::directory_entry& entry : fs::directory_iterator(series)) {
    const auto step = step_of(entry.path().filename());
    std::error_code dead;
    if (step && entry.is_directory(dead)) steps[*step] = fs::exists(entry.path() / kIndexName);
  }
  return steps;
}

void write_latest(const fs::path& series, const std::string& name) {
  const fs::path temporary = series / ".latest.tmp";
  OutputFile file(temporary);
  const std::string text = name + "\n";
  file.write(text.data(), text.size());
  file.close();
  sync_file(temporary);
  fs::rename(temporary, series / kLatest);
  sync_file(series);
}

/// What `latest` says, if it names a step's folder.
std::optional<std::string> read_latest(const fs::path& series) {
  const fs::path path = series / kLatest;
  std::error_code dead;
  const fs::file_status status = fs::status(path, dead);
  if (!fs::exists(status)) return std::nullopt;
  OSLO_CHECK(fs::is_regular_file(status), printable_path(path),
             " is no file; make it one with the name of a step's folder, or remove it");
  std::string name = read_file(InputFile(path), kLongestName);
  while (!name.empty() && (name.back() == '\n' || name.back() == '\r')) name.pop_back();
  OSLO_CHECK(step_of(name), printable_path(path), " says '", printable(name),
             "', which is no step's folder; write the name of one into it, or remove it");
  return name;
}

void remove_checkpoint(const fs::path& folder) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const fs::path kind = entry.path().extension();
    const bool ours = kind == ".safetensors" || kind == ".bin" || kind == ".json";
    if (!entry.is_regular_file() || !ours) return;  // somebody keeps something here
  }
  // Without its index it is no checkpoint any more, whenever this is killed.
  fs::remove(folder / kIndexName);
  fs::remove_all(folder);
}

/// Folders that saves of other steps made and did not finish.
void clean_up_after_the_dead(const fs::path& series) {
  static const std::regex form("\\.(step-[0-9]{6,18})\\.tmp-.*");
  std::set<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(series)) {
    const std::string name = entry.path().filename();
    std::smatch parts;
    if (std::regex_match(name, parts, form)) names.insert(parts[1]);
  }
  for (const std::string& name : names) {
    try {
      const StagingDirectory cleans(series / name);
    } catch (const Error&) {
      // Its save is alive.
    }
  }
}

}  // namespace

fs::path step_folder(const fs::path& series, int64_t step) {
  OSLO_CHECK(step >= 0, "a checkpoint of step ", step, ": steps count from 0");
  OSLO_CHECK(!fs::exists(series / kIndexName), "cannot save a step into ", series.string(),
             ": it is a checkpoint itself; save into a folder of its own");
  return series / name_of(step);
}

void publish_step(const fs::path& series, int64_t step, int keep) try {
  write_latest(series, name_of(step));
  if (keep <= 0) return;
  clean_up_after_the_dead(series);
  std::map<int64_t, bool> steps = steps_in(series);
  int kept = 1;
  steps.erase(step);
  for (auto it = steps.rbegin(); it != steps.rend(); ++it) {
    const auto& [other, complete] = *it;
    // What a link leads to is somebody else's, or has a name of its own here.
    if (fs::is_symlink(series / name_of(other))) continue;
    if (complete && kept < keep) {
      ++kept;
    } else {
      remove_checkpoint(series / name_of(other));
    }
  }
} catch (const fs::filesystem_error& error) {
  fail("cannot keep the series ", printable_path(series), ": ", error.what());
}

fs::path latest_checkpoint(const fs::path& folder) {
  if (!fs::is_directory(folder)) return folder;
  if (fs::exists(folder / kIndexName)) return folder;
  const std::optional<std::string> named = read_latest(folder);
  if (named) {
    const fs::path path = find_committed(folder / *named);
    if (fs::exists(path / kIndexName)) return path;
  }
  const std::map<int64_t, bool> steps = steps_in(folder);
  for (auto it = steps.rbegin(); it != steps.rend(); ++it) {
    if (it->second) return folder / name_of(it->first);
  }
  OSLO_CHECK(!named && steps.empty(), "there is no checkpoint in ", printable_path(folder),
             ": none of its steps is complete");
  return folder;
}

}  // namespace oslo
