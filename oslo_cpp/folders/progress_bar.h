#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace oslo {

/// A line on standard error that says how far a command is, how fast, and how long it will go on:
///
///   oslo merge  [############............]  51 %  2.1 GB of 4.1 GB  812.4 MB/s  3 s left
///
/// On a terminal only; written over several times a second, and removed at the end.
class ProgressBar {
 public:
  explicit ProgressBar(std::string command);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void show(uint64_t done, uint64_t all);

 private:
  std::string command_;
  bool on_terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point begun_, last_;
};

}  // namespace oslo
