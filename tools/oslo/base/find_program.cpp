#include "tools/oslo/base/find_program.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <sstream>
#include <vector>

namespace oslo::tool {
namespace {

bool is_file(const std::string& path) {
  struct stat status {};
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

std::string search(const std::string& program, int& exit_code) {
  std::vector<std::string> candidates;
  if (program.find('/') != std::string::npos) {
    candidates.push_back(program);
  } else {
    const char* const path = std::getenv("PATH");
    std::istringstream folders(path == nullptr ? "/usr/local/bin:/usr/bin:/bin" : path);
    for (std::string folder; std::getline(folders, folder, ':');) {
      candidates.push_back((folder.empty() ? "." : folder) + "/" + program);
    }
  }
  exit_code = 127;
  for (const std::string& candidate : candidates) {
    struct stat status {};
    if (stat(candidate.c_str(), &status) != 0) continue;
    if (is_file(candidate) && access(candidate.c_str(), X_OK) == 0) {
      exit_code = 0;
      return candidate;
    }
    exit_code = 126;
  }
  return "";
}

}  // namespace

std::string find_program(const std::string& program, const std::string& command, int& exit_code) {
  const std::string path = search(program, exit_code);
  if (exit_code == 0) return path;
  std::cerr << command << ": ";
  if (exit_code == 126) {
    std::cerr << program << " is not an executable file; `chmod +x` it, or name its interpreter\n";
  } else if (program.find('/') != std::string::npos) {
    std::cerr << "there is no file " << program << "\n";
  } else {
    std::cerr << "there is no program " << program << " in PATH"
              << (is_file(program) ? "; write ./" + program + " for the one in this folder" : "")
              << "\n";
  }
  return path;
}

}  // namespace oslo::tool
