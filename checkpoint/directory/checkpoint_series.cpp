#include "checkpoint/directory/checkpoint_series.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "checkpoint/formats/json/bounded_json.h"
#include "checkpoint/formats/json/json_node.h"
#include "checkpoint/index/checkpoint_index.h"
#include "checkpoint/storage/file_io.h"
#include "checkpoint/storage/folder_lock.h"
#include "checkpoint/storage/format.h"
#include "checkpoint/storage/host_digits.h"
#include "checkpoint/storage/outside_text.h"
#include "checkpoint/storage/staging_directory.h"
#include "mpu/base/error.h"

namespace oslo {
namespace {

namespace fs = std::filesystem;

constexpr char kLatest[] = "latest";
/// How the names of those begin that are still written.
constexpr char kLatestBegun[] = ".latest.tmp-";
constexpr uint64_t kLongestName = 64;
constexpr JsonLimits kPlaceLimits = {.bytes = 4096, .values = 16, .depth = 2};

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

/// A step's folder.
struct Step {
  int64_t step = 0;
  bool complete = false;  ///< it has its index
  bool linked = false;  ///< what a link leads to is somebody else's, or has a name of its own here
  int64_t number = 0;   ///< as series.json has them
  std::string after = {};
};

/// What a folder's series.json says.
void read_place(const fs::path& folder, Step& step) {
  const fs::path path = folder / kSeriesName;
  if (!fs::exists(path)) return;
  try {
    const nlohmann::json json =
        read_json(read_file(InputFile(path), kPlaceLimits.bytes), kPlaceLimits);
    const JsonNode root(json, printable_path(path));
    step.number = root["number"].number();
    if (root.has("after")) step.after = root["after"].text();
  } catch (const Error& error) {
    if (!fs::exists(path)) return;  // a save has removed it meanwhile
    fail_as(ErrorKind::file, printable_path(path), " is damaged: ", error.what(),
            "; remove it, and its checkpoint counts as the oldest of the series");
  }
}

/// All of a series. Links are followed; those that lead nowhere are none.
std::vector<Step> steps_in(const fs::path& series) {
  std::vector<Step> steps;
  for (const fs::directory_entry& entry : fs::directory_iterator(series)) {
    const auto number = step_of(entry.path().filename());
    std::error_code dead;
    if (!number || !entry.is_directory(dead)) continue;
    Step step{*number, fs::exists(entry.path() / kIndexName), entry.is_symlink()};
    read_place(entry.path(), step);
    steps.push_back(std::move(step));
  }
  return steps;
}

/// Whether `a` was saved later. Links come last: their numbers may be those of another series.
bool is_newer(const Step& a, const Step& b) {
  return std::tie(b.linked, a.number, a.step) > std::tie(a.linked, b.number, b.step);
}

/// The newest step that is like it should be; null where none is.
template <typename Wanted>
const Step* newest(const std::vector<Step>& steps, const Wanted& wanted) {
  const Step* found = nullptr;
  for (const Step& step : steps) {
    if (wanted(step) && (found == nullptr || is_newer(step, *found))) found = &step;
  }
  return found;
}

/// The step that another one was saved after; null where it has gone, or was saved again since.
const Step* before(const std::vector<Step>& steps, const Step& step) {
  if (step.number == 0) {
    return newest(steps, [&](const Step& s) { return s.number == 0 && s.step < step.step; });
  }
  return newest(steps, [&](const Step& s) {
    return name_of(s.step) == step.after && s.number < step.number;
  });
}

/// The steps in the order in which they stay: the run's own, back from `step`, and then those that
/// it left.
std::vector<Step> by_history(std::vector<Step> steps, int64_t step) {
  std::set<int64_t> own;
  const Step* at = newest(steps, [&](const Step& s) { return s.step == step; });
  std::vector<Step> order;
  for (; at != nullptr && own.insert(at->step).second; at = before(steps, *at)) {
    order.push_back(*at);
  }
  std::sort(steps.begin(), steps.end(), is_newer);
  for (Step& left : steps) {
    if (own.count(left.step) == 0) order.push_back(std::move(left));
  }
  return order;
}

/// How those begin that are written while this host's lock is held.
std::string begun_under_lock() {
  return c10::str(kLatestBegun, host_digits(), "-");
}

/// The file is this save's own until it has its name: another job may save a step meanwhile.
void write_latest(const fs::path& series, const std::string& name, bool locked) {
  const fs::path temporary =
      series / c10::str(locked ? begun_under_lock() : kLatestBegun, std::random_device()());
  try {
    OutputFile file(temporary);
    const std::string text = name + "\n";
    file.write(text.data(), text.size());
    file.close();
    sync_file(temporary);
    fs::rename(temporary, series / kLatest);
  } catch (...) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw;
  }
  sync_file(series);
}

/// What `latest` says, if it names a step's folder.
std::optional<std::string> read_latest(const fs::path& series) {
  const fs::path path = series / kLatest;
  std::error_code dead;
  const fs::file_status status = fs::status(path, dead);
  if (!fs::exists(status)) return std::nullopt;
  OSLO_CHECK_AS(file, fs::is_regular_file(status), printable_path(path),
                " is no file; make it one with the name of a step's folder, or remove it");
  std::string name = read_file(InputFile(path), kLongestName);
  while (!name.empty() && (name.back() == '\n' || name.back() == '\r')) name.pop_back();
  OSLO_CHECK_AS(file, step_of(name), printable_path(path), " says '", printable(name),
                "', which is no step's folder; write the name of one into it, or remove it");
  return name;
}

void remove_checkpoint(const fs::path& folder) {
  std::error_code error;
  fs::directory_iterator entries(folder, error);
  if (error == std::errc::no_such_file_or_directory) return;  // another job has removed it
  if (error) {
    fail_as(ErrorKind::file, "cannot remove ", printable_path(folder), ": ", error.message());
  }
  for (const fs::directory_entry& entry : entries) {
    // Somebody keeps something here.
    if (!entry.is_regular_file() || !may_be_saved(entry.path())) return;
  }
  remove_at_once(folder);
}

/// What saves of other steps made and did not finish. Who wrote a `latest` under the lock that is
/// held now has died over it. Without the lock, and of other hosts, nobody can tell.
void clean_up_after_the_dead(const fs::path& series, bool locked) {
  static const std::regex form("\\.(step-[0-9]{6,18})\\.(tmp-.*|lock)");
  const std::string dead = begun_under_lock();
  std::map<std::string, bool> names;  ///< and whether there is more than a lock
  for (const fs::directory_entry& entry : fs::directory_iterator(series)) {
    const std::string name = entry.path().filename();
    std::smatch parts;
    if (std::regex_match(name, parts, form)) names[parts[1]] |= parts[2] != "lock";
    if (locked && name.starts_with(dead)) {
      std::error_code gone;
      fs::remove(entry.path(), gone);
    } else if (name.starts_with(kLatestBegun)) {
      remove_forsaken(entry.path());
    }
  }
  for (const auto& [name, more] : names) {
    if (!more) {
      remove_dead_lock(series / name);
      continue;
    }
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
  OSLO_CHECK_AS(file, !fs::exists(series / kIndexName), "cannot save a step into ", series.string(),
                ": it is a checkpoint itself; save into a folder of its own");
  return series / name_of(step);
}

nlohmann::json next_in_series(const fs::path& series) try {
  nlohmann::json place = {{"number", 1}};
  if (!fs::is_directory(series)) return place;
  for (const Step& step : steps_in(series)) {
    if (!step.linked) place["number"] = std::max(place["number"].get<int64_t>(), step.number + 1);
  }
  try {
    if (const auto latest = read_latest(series)) place["after"] = *latest;
  } catch (const Error&) {
    // It names no step, and this save replaces it.
  }
  return place;
} catch (const fs::filesystem_error& error) {
  fail_as(ErrorKind::file, "cannot read the series ", printable_path(series), ": ",
          error.code().message());
}

void publish_step(const fs::path& series, int64_t step, int keep,
                  const std::function<void()>& commit) try {
  const FolderLock others_wait(series);
  commit();
  write_latest(series, name_of(step), others_wait.held());
  if (keep <= 0) return;
  clean_up_after_the_dead(series, others_wait.held());
  int kept = 0;
  for (const Step& each : by_history(steps_in(series), step)) {
    if (each.linked) continue;
    if (each.complete && kept < keep) {
      ++kept;
    } else {
      remove_checkpoint(series / name_of(each.step));
    }
  }
} catch (const fs::filesystem_error& error) {
  fail_as(ErrorKind::file, "cannot keep the series ", printable_path(series), ": ", error.what());
}

LatestCheckpoint latest_checkpoint(const fs::path& folder) {
  if (!fs::is_directory(folder)) return {folder, ""};
  if (fs::exists(folder / kIndexName)) return {folder, ""};
  std::optional<std::string> named = read_latest(folder);
  while (named) {
    const fs::path path = find_committed(folder / *named);
    if (fs::exists(path / kIndexName)) return {path, ""};
    // A save may have replaced `latest`, and removed the step, between the two looks.
    std::optional<std::string> again = read_latest(folder);
    if (again == named) break;
    named = std::move(again);
  }
  const std::vector<Step> steps = steps_in(folder);
  const Step* last = newest(steps, [](const Step& step) { return step.complete; });
  if (last != nullptr) {
    const std::string name = name_of(last->step);
    return {folder / name,
            c10::str(printable_path(folder / kLatest),
                     named ? " names " + *named + ", which is not there" : " is gone", ": ", name,
                     " is taken, which was saved last")};
  }
  OSLO_CHECK_AS(file, !named && steps.empty(), "there is no checkpoint in ", printable_path(folder),
                ": none of its steps is complete");
  return {folder, ""};
}

}  // namespace oslo
