#include "checkpoint/storage/open_folder.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"

namespace oslo {

namespace {

/// How often a folder is looked for before its absence is believed.
constexpr int kLooks = 10;

size_t files_to_hold() {
  struct rlimit limit = {};
  constexpr size_t kUsual = 1024;
  const bool known = ::getrlimit(RLIMIT_NOFILE, &limit) == 0;
  return (known ? static_cast<size_t>(limit.rlim_cur) : kUsual) / 4;
}

}  // namespace

OpenFolder::OpenFolder(std::filesystem::path path)
    : path_(std::move(path)),
      fd_(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)),
      room_(files_to_hold()) {
  OSLO_CHECK_AS(file, fd_ >= 0, "cannot open the folder ", printable_path(path_), ": ",
                std::strerror(errno));
}

OpenFolder::~OpenFolder() {
  ::close(fd_);
}

bool OpenFolder::has(const std::string& name) const {
  struct stat status = {};
  return held_.count(name) > 0 || ::fstatat(fd_, name.c_str(), &status, 0) == 0;
}

InputFile OpenFolder::open(const std::string& name) const {
  const auto held = held_.find(name);
  return held != held_.end() ? held->second : InputFile(path_ / name, fd_);
}

void OpenFolder::hold(const std::string& name) {
  if (held_.count(name) > 0 || held_.size() >= room_) return;
  held_.emplace(name, InputFile(path_ / name, fd_));
}

bool OpenFolder::in_place() const {
  struct stat own = {}, named = {};
  if (::fstat(fd_, &own) != 0 || ::stat(path_.c_str(), &named) != 0) return false;
  if (own.st_dev != named.st_dev || own.st_ino != named.st_ino) return false;
  for (const auto& [_, file] : held_) {
    if (!file.in_place(fd_)) return false;
  }
  return true;
}

bool OpenFolder::is_as_opened() const {
  return std::ranges::all_of(held_, [](const auto& held) { return held.second.is_as_opened(); });
}

void fail_as_replaced(const std::filesystem::path& path) {
  fail_as(
      ErrorKind::file, "the checkpoint ", printable_path(path), " was replaced ", kMostReadings,
      " times while it was read: another job saves there without a pause; load it when that has "
      "ended");
}

void read_in_place(const std::filesystem::path& path, const std::function<void()>& read,
                   const std::function<bool()>& is_open, const std::function<bool()>& in_place) {
  for (int reading = 1; reading <= kMostReadings; ++reading) {
    try {
      read();
      if (in_place()) return;
    } catch (const Error&) {
      if (is_open() ? in_place() : reading >= kLooks) throw;
    } catch (const std::filesystem::filesystem_error&) {
      if (is_open() ? in_place() : reading >= kLooks) throw;
    }
  }
  fail_as_replaced(path);
}

}  // namespace oslo
