#pragma once

#include <filesystem>

namespace oslo {

/// How a finished folder takes the place of the one before.
enum class Replace {
  kExchange,  ///< Both change names at once (Linux, most local file systems); two steps otherwise.
  kTwoSteps,  ///< The old one steps aside, then the new one takes its name.
};

/// A folder that becomes `final_path` as a whole or not at all. It is made beside it as
/// `.<name>.tmp-<host>-<pid>-<n>`; files are written there; `commit` puts them on the disk and
/// swaps the names. A process killed at any moment leaves the previous folder complete or the new
/// one.
///
/// One process, the owner, makes the object. Others, on any machine that sees the file system,
/// write into `path()`, each calling `sync_file` on what it wrote, and report to the owner before
/// it commits. A lock file `.<name>.lock` keeps two owners of one folder apart; it goes when the
/// kernel learns that its holder died, so what a killed save left is removed by the next.
///
/// On file systems that cannot swap names (NFS), or with `kTwoSteps`, the old folder first becomes
/// `.<name>.old`: a kill between the two steps leaves nothing at `final_path`, but the old folder
/// complete under that name, where `find_committed` sees it and from where the next save brings it
/// back. On file systems without locks leftovers stay, since nobody can tell whether their save
/// lives. Where locks hold within a host only (NFS mounted so), two hosts that save into one folder
/// leave each other's files alone; the later of them wins. What another host left is removed when
/// nothing in it was written for a day.
class StagingDirectory {
 public:
  /// Locks, repairs and cleans up after killed saves, and makes the folder (and missing parents).
  /// Throws `Error` if another save into `final_path` is running, if `final_path` is no folder, or
  /// if it holds anything but files of tensors (`Format`) and *.json: replacing it would delete
  /// what no save wrote.
  explicit StagingDirectory(const std::filesystem::path& final_path,
                            Replace replace = Replace::kExchange);
  /// Removes the folder unless it was committed.
  ~StagingDirectory();
  StagingDirectory(const StagingDirectory&) = delete;
  StagingDirectory& operator=(const StagingDirectory&) = delete;

  /// Where to write: absolute, the same for every process.
  const std::filesystem::path& path() const { return path_; }
  /// What it becomes: absolute, symbolic links followed.
  const std::filesystem::path& final_path() const { return final_path_; }

  /// Syncs every file and the folder, takes the final name, syncs the parent, removes the previous
  /// folder. Throws `Error` with the reason: the previous folder is then in place, or, if it was
  /// the parent that could not be synced, the new one. Throws on a second call.
  void commit();

 private:
  void lock();
  void unlock();
  void clean_up_after_the_dead();
  void remove();

  std::filesystem::path final_path_;
  std::filesystem::path path_;
  Replace replace_;
  int lock_ = -1;
  int owner_ = 0;
  bool committed_ = false;
};

/// The folder to read for `final_path`: itself, or `.<name>.old` beside it where a save was killed
/// between its two steps, or `final_path` again where there is neither.
std::filesystem::path find_committed(const std::filesystem::path& final_path);

/// Removes a folder that a save made. It loses its name first, so that nobody finds half of it;
/// what a kill leaves is removed as what a killed save left. Nothing where another job has removed
/// it.
void remove_at_once(const std::filesystem::path& folder);

/// Removes the lock file that a killed save into `final_path` left; nothing where the save lives,
/// or another host's may.
void remove_dead_lock(const std::filesystem::path& final_path);

/// Removes what was not written to for a day, if it can be.
void remove_forsaken(const std::filesystem::path& path);

}  // namespace oslo
