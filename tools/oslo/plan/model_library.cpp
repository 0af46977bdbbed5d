#include "tools/oslo/plan/model_library.h"

#include <dlfcn.h>

#include <filesystem>
#include <iostream>
#include <system_error>

namespace oslo::tool {

bool is_library(const std::string& program) {
  const std::string name = std::filesystem::path(program).filename().string();
  const size_t end = name.rfind(".so");
  return end != std::string::npos &&
         name.find_first_not_of("0123456789.", end + 3) == std::string::npos;
}

int plan_library(const std::vector<std::string>& words) {
  const std::string& path = words[0];
  std::error_code unreadable;
  if (!std::filesystem::is_regular_file(path, unreadable)) {
    std::cerr << "oslo plan: there is no file " << path << "\n";
    return 127;
  }
  // An absolute path: for a bare name dlopen would search the system's folders instead of this one.
  void* const library = dlopen(std::filesystem::absolute(path).c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    std::cerr << "oslo plan: cannot load " << path << ": " << dlerror() << "\n";
    return 126;
  }
  using Plan = int (*)(int, const char* const*);
  const auto plan = reinterpret_cast<Plan>(dlsym(library, "oslo_plan_library"));
  if (plan == nullptr) {
    std::cerr << "oslo plan: " << path << " offers no model; write OSLO_MODEL_LIBRARY(...) of "
              << "oslo_cpp/initialize/model_library.h in one of its files\n";
    return 126;
  }
  std::vector<const char*> rest;
  for (size_t i = 1; i < words.size(); ++i) rest.push_back(words[i].c_str());
  return plan(static_cast<int>(rest.size()), rest.data());
}

}  // namespace oslo::tool
