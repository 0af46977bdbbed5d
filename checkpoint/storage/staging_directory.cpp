#include "checkpoint/storage/staging_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <regex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "checkpoint/storage/file_io.h"
#include "checkpoint/storage/format.h"
#include "checkpoint/storage/host_digits.h"
#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"

namespace oslo {
namespace {

namespace fs = std::filesystem;

/// Absolute, links followed, without a trailing slash.
fs::path resolve(const fs::path& path) {
  std::error_code error;
  fs::path whole = fs::absolute(path, error);
  if (!error) {
    whole = fs::weakly_canonical(whole, error);
  }
  OSLO_CHECK_AS(file, !error, "cannot resolve the folder '", printable_path(path),
                "': ", error.message());
  if (!whole.has_filename()) {
    whole = whole.parent_path();
  }
  OSLO_CHECK_AS(file, whole.has_filename(), "cannot save into ", path.string(),
                ": give a folder with a name");
  return whole;
}

/// `.<name><suffix>` beside `path`.
fs::path sibling(const fs::path& path, const std::string& suffix) {
  return path.parent_path() / ("." + path.filename().string() + suffix);
}

bool is_there(const fs::path& path) {
  struct stat status = {};
  return ::lstat(path.c_str(), &status) == 0;
}

/// Throws unless `folder` is absent or holds only what saves write.
void check_replaceable(const fs::path& folder) {
  if (!is_there(folder)) {
    return;
  }
  OSLO_CHECK_AS(file, fs::is_directory(folder), "cannot save into ", folder.string(),
                ": it is there and is no folder");
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    OSLO_CHECK_AS(file, entry.is_regular_file() && may_be_saved(entry.path()), "cannot save into ",
                  folder.string(), ": it holds ", entry.path().filename().string(),
                  ", which no save wrote and replacing the folder would delete; save into a folder "
                  "of its own");
  }
}

/// Whose a folder of this name is, if it is one that saves make.
enum class Owner { nobody, this_host, another_host };

/// Stricter than the prefix alone, because another checkpoint may be called
/// `<name>.tmp-<something>`.
Owner owner_of(const std::string& name, const std::string& prefix) {
  if (!name.starts_with(prefix)) return Owner::nobody;
  static const std::regex form("(?:([0-9a-f]{8})-)?[0-9]+-[0-9]+");
  std::smatch parts;
  const std::string rest = name.substr(prefix.size());
  if (!std::regex_match(rest, parts, form)) return Owner::nobody;
  // Without a host: of a version that wrote none.
  return !parts[1].matched || parts[1] == host_digits() ? Owner::this_host : Owner::another_host;
}

/// Whether nothing in the folder was written for a day: a save that lives writes more often, and
/// hosts' clocks are closer than that.
bool is_forsaken(const fs::path& folder) {
  constexpr auto kLong = std::chrono::hours(24);
  fs::file_time_type newest = fs::last_write_time(folder);
  if (fs::is_directory(folder)) {
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder)) {
      newest = std::max(newest, fs::last_write_time(entry.path()));
    }
  }
  return fs::file_time_type::clock::now() - newest > kLong;
}

/// Of two that remove one folder at once neither fails: what one does not find the other removes.
void remove_beside_others(const fs::path& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  if (error && error != std::errc::no_such_file_or_directory) {
    throw fs::filesystem_error("cannot remove", folder, error);
  }
}

void rename_or_fail(const fs::path& from, const fs::path& to) {
  OSLO_CHECK_AS(file, ::rename(from.c_str(), to.c_str()) == 0, "cannot rename ", from.string(),
                " to ", to.string(), ": ", std::strerror(errno));
}

/// Whether the open file still has this name: its holder before may have removed it between our
/// open and our lock.
bool is_named(int file, const fs::path& name) {
  struct stat held = {};
  struct stat named = {};
  return ::fstat(file, &held) == 0 && ::stat(name.c_str(), &named) == 0 &&
         held.st_ino == named.st_ino && held.st_dev == named.st_dev;
}

/// Syncs all files and folders below `folder` and itself, the contents before the names.
void sync_tree(const fs::path& folder) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory() && !entry.is_symlink()) {
      sync_tree(entry.path());
    } else if (entry.is_regular_file() && !entry.is_symlink()) {
      sync_file(entry.path());
    }
  }
  sync_file(folder);
}

}  // namespace

StagingDirectory::StagingDirectory(const fs::path& final_path, Replace replace)
    : final_path_(resolve(final_path)), replace_(replace), owner_(::getpid()) {
  const fs::path parent = final_path_.parent_path();
  std::error_code error;
  fs::create_directories(parent, error);
  OSLO_CHECK_AS(file, !error, "cannot create the folder ", parent.string(), ": ", error.message());
  lock();
  try {
    if (lock_ >= 0) {
      clean_up_after_the_dead();
    }
    check_replaceable(final_path_);
    int number = 0;
    do {
      path_ = sibling(final_path_, c10::str(".tmp-", host_digits(), "-", owner_, "-", number++));
    } while (::mkdir(path_.c_str(), 0777) != 0 && errno == EEXIST);
    OSLO_CHECK_AS(file, is_there(path_), "cannot create the folder ", path_.string(), ": ",
                  std::strerror(errno));
  } catch (const fs::filesystem_error& e) {
    unlock();
    fail_as(ErrorKind::file, "cannot prepare a save into ", final_path_.string(), ": ", e.what());
  } catch (...) {
    unlock();
    throw;
  }
}

StagingDirectory::~StagingDirectory() {
  // A forked child has a copy of this object, but the folder is its parent's.
  if (owner_ != ::getpid()) {
    if (lock_ >= 0) {
      ::close(lock_);
    }
    return;
  }
  if (!committed_) {
    remove();
  }
  unlock();
}

void StagingDirectory::lock() {
  const fs::path file = sibling(final_path_, ".lock");
  // Who clears away what the dead left holds a lock for a moment.
  constexpr auto kMoment = std::chrono::milliseconds(200);
  const auto end = std::chrono::steady_clock::now() + kMoment;
  while (true) {
    lock_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    OSLO_CHECK_AS(file, lock_ >= 0, "cannot create ", file.string(), ": ", std::strerror(errno));
    if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      ::close(std::exchange(lock_, -1));
      if (error == EWOULDBLOCK && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;
      }
      OSLO_CHECK_AS(file, error != EWOULDBLOCK, "another save into ", final_path_.string(),
                    " is running; wait for it or save into another folder");
      if (error == EINTR) {
        continue;
      }
      return;  // No locks here: work without, and leave what others left.
    }
    if (is_named(lock_, file)) {
      const std::string host = host_digits();
      // For `remove_dead_lock`, as far as the file can be written.
      [[maybe_unused]] const bool told =
          ::ftruncate(lock_, 0) == 0 && ::pwrite(lock_, host.data(), host.size(), 0) > 0;
      return;
    }
    ::close(lock_);
  }
}

void StagingDirectory::unlock() {
  if (lock_ >= 0) {
    // Removed while held, so that nobody can hold a file of this name that is not the newest.
    ::unlink(sibling(final_path_, ".lock").c_str());
    ::close(std::exchange(lock_, -1));
  }
}

void StagingDirectory::clean_up_after_the_dead() {
  const fs::path old = sibling(final_path_, ".old");
  if (is_there(old)) {
    if (is_there(final_path_)) {
      fs::remove_all(old);
    } else {
      rename_or_fail(old, final_path_);
    }
  }
  const std::string prefix = sibling(final_path_, ".tmp-").filename().string();
  for (const fs::directory_entry& entry : fs::directory_iterator(final_path_.parent_path())) {
    const Owner owner = owner_of(entry.path().filename().string(), prefix);
    // Two hosts may both hold the lock, on a file system that keeps it within a host.
    if (owner == Owner::this_host || (owner == Owner::another_host && is_forsaken(entry.path()))) {
      remove_beside_others(entry.path());
    }
  }
}

void StagingDirectory::remove() {
  // Best effort: what cannot be removed now, the next save removes.
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void StagingDirectory::commit() try {
  OSLO_CHECK_AS(file, !committed_, "the folder ", final_path_.string(), " is committed already");
  sync_tree(path_);
  check_replaceable(final_path_);
  const fs::path parent = final_path_.parent_path();
  const fs::path old = sibling(final_path_, ".old");
  if (!is_there(final_path_)) {
    rename_or_fail(path_, final_path_);
    path_.clear();
  } else if (replace_ == Replace::kTwoSteps ||
             ::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, final_path_.c_str(), RENAME_EXCHANGE) !=
                 0) {
    OSLO_CHECK_AS(
        file,
        replace_ == Replace::kTwoSteps || errno == EINVAL || errno == ENOSYS || errno == EOPNOTSUPP,
        "cannot swap ", path_.string(), " and ", final_path_.string(), ": ", std::strerror(errno));
    rename_or_fail(final_path_, old);
    sync_file(parent);
    if (::rename(path_.c_str(), final_path_.c_str()) != 0) {
      const int error = errno;
      rename_or_fail(old, final_path_);
      fail_as(ErrorKind::file, "cannot rename ", path_.string(), " to ", final_path_.string(), ": ",
              std::strerror(error));
    }
    path_ = old;
  }
  // From here on `path_` names what the new folder replaced, if anything.
  committed_ = true;
  sync_file(parent);
  if (!path_.empty()) {
    remove();
  }
  path_ = final_path_;
  unlock();
} catch (const fs::filesystem_error& e) {
  fail_as(ErrorKind::file, "cannot save into ", final_path_.string(), ": ", e.what());
}

fs::path find_committed(const fs::path& final_path) {
  const fs::path whole = resolve(final_path);
  if (!is_there(whole)) {
    // Looked at twice: the second step may come between.
    const fs::path old = sibling(whole, ".old");
    if (is_there(old) && !is_there(whole)) {
      return old;
    }
  }
  return whole;
}

void remove_at_once(const fs::path& folder) {
  const fs::path whole = resolve(folder);
  const std::string dead = c10::str(".tmp-", host_digits(), "-", ::getpid(), "-");
  fs::path gone;
  for (int number = 0; gone.empty() || is_there(gone); ++number) {
    gone = sibling(whole, dead + std::to_string(number));
  }
  if (::rename(whole.c_str(), gone.c_str()) != 0) {
    OSLO_CHECK_AS(file, errno == ENOENT, "cannot rename ", whole.string(), " to ", gone.string(),
                  ": ", std::strerror(errno));
    return;  // another job has removed it
  }
  remove_beside_others(gone);
}

void remove_dead_lock(const fs::path& final_path) {
  const fs::path file = sibling(resolve(final_path), ".lock");
  const int lock = ::open(file.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (lock < 0) return;
  const std::string ours = host_digits();
  std::string host(ours.size(), '\0');
  const bool of_another = ::pread(lock, host.data(), host.size(), 0) > 0 && host != ours;
  if (!of_another && ::flock(lock, LOCK_EX | LOCK_NB) == 0 && is_named(lock, file)) {
    ::unlink(file.c_str());
  }
  ::close(lock);
  if (of_another) remove_forsaken(file);
}

void remove_forsaken(const fs::path& path) try {
  if (is_forsaken(path)) fs::remove_all(path);
} catch (const fs::filesystem_error&) {
  // Its save has removed it, or somebody else may.
}

}  // namespace oslo
