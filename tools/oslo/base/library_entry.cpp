#include "tools/oslo/base/library_entry.h"

#include <dlfcn.h>

#include <iostream>

namespace oslo::tool {

void* library_entry(const char* command, const char* name, int& exit_code) {
  void* const library = dlopen(OSLO_LIBRARY, RTLD_NOW | RTLD_GLOBAL);
  void* const entry = library == nullptr ? nullptr : dlsym(library, name);
  if (entry == nullptr) {
    std::cerr << "oslo " << command << ": cannot load " << OSLO_LIBRARY << ": " << dlerror()
              << "\n";
    exit_code = 126;
  }
  return entry;
}

}  // namespace oslo::tool
