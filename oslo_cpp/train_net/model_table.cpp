#include "oslo_cpp/train_net/model_table.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"

namespace oslo {

namespace fs = std::filesystem;

TrainedModels load_trained_models(const std::string& library) {
  const std::string shown = printable_path(library);
  std::error_code unreadable;
  OSLO_CHECK_AS(file, fs::is_regular_file(library, unreadable), "there is no model library ",
                shown);
  // An absolute path: for a bare name dlopen would search the system's folders instead of this one.
  void* const loaded = dlopen(fs::absolute(library).c_str(), RTLD_NOW | RTLD_GLOBAL);
  OSLO_CHECK_AS(file, loaded != nullptr, "cannot load the model library ", shown, ": ", dlerror());
  // RTLD_GLOBAL, but the function of this one: two libraries may be loaded.
  const auto fill =
      reinterpret_cast<void (*)(TrainedModels*)>(dlsym(loaded, "oslo_trained_models"));
  OSLO_CHECK_AS(config, fill != nullptr, "the library ", shown,
                " has no models to train; write OSLO_TRAINED_MODELS(...) of "
                "oslo_cpp/train_net/trained_model.h in one of its files");
  TrainedModels models;
  fill(&models);
  return models;
}

std::string find_model_library() {
  std::error_code ignored;
  const fs::path folder = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  const fs::path beside = folder / "libmodel_zoo.so";
  const fs::path installed = folder.parent_path() / "lib" / "libmodel_zoo.so";
  for (const fs::path& path : {beside, installed}) {
    if (fs::is_regular_file(path, ignored)) return path.string();
  }
  fail_as(ErrorKind::config, "the tutorials' models are neither in ", printable_path(beside),
          " nor in ", printable_path(installed),
          "; build them (the target model_zoo), or name a library of models: --model-library FILE, "
          "or \"model\": {\"library\": FILE}");
}

}  // namespace oslo
