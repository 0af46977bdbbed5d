#include "oslo_cpp/folders/folder_commands.h"

#include <exception>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "checkpoint/folders/folder_plan.h"
#include "checkpoint/folders/rewrite_folder.h"
#include "checkpoint/folders/size_text.h"
#include "checkpoint/storage/format.h"
#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"
#include "mpu/base/text.h"
#include "oslo_cpp/config/config.h"
#include "oslo_cpp/folders/progress_bar.h"

namespace oslo {
namespace {

constexpr int kFailed = 1, kMisused = 2;

/// Runs `body` with something to tell its progress to; says what it throws.
int run(const std::string& command, const std::function<void(const TellProgress&)>& body) {
  try {
    ProgressBar bar("oslo " + command);
    body([&](uint64_t done, uint64_t all) { bar.show(done, all); });
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "oslo " << command << ": " << message_of(error) << "\n";
    return kFailed;
  }
}

/// The same of a command that writes the folder `to`; says at the end what it wrote.
int write(const std::string& command, const char* to,
          const std::function<void(const TellProgress&)>& body) {
  uint64_t written = 0;
  const int exit_code = run(command, [&](const TellProgress& tell) {
    body([&](uint64_t done, uint64_t all) {
      written = done;
      tell(done, all);
    });
  });
  if (exit_code == 0) {
    std::cout << printable_path(to) << ": " << size_text(static_cast<double>(written))
              << " of tensors written\n";
  }
  return exit_code;
}

/// Of a config that says how many ranks there are to be.
Config config_of(int count, const char* const* settings) {
  Config config;
  for (int i = 0; i < count; ++i) {
    const std::string setting = settings[i];
    const size_t name_end = setting.find('=');
    const bool bare = setting.substr(0, name_end).find('.') == std::string::npos;
    config.set(bare ? "model_parallelism." + setting : setting);
  }
  return config;
}

}  // namespace
}  // namespace oslo

int oslo_inspect_folder(const char* path) {
  return oslo::run("inspect",
                   [&](const oslo::TellProgress&) { std::cout << oslo::describe_folder(path); });
}

int oslo_verify_folder(const char* path) {
  oslo::VerifiedFolder verified;
  const int exit_code = oslo::run("verify", [&](const oslo::TellProgress& tell) {
    verified = oslo::verify_folder(path, tell);
  });
  if (exit_code != 0) return exit_code;
  std::cout << path << ": " << verified.tensors << " tensors of "
            << oslo::size_text(static_cast<double>(verified.bytes)) << " are whole; ";
  if (verified.files > 0) {
    std::cout << "the hashes of " << verified.files << " files fit\n";
  } else {
    std::cout << "there are no hashes to compare\n";
  }
  return 0;
}

int oslo_merge_folder(const char* from, const char* to, const char* format) {
  return oslo::write("merge", to, [&](const oslo::TellProgress& tell) {
    const std::optional<oslo::Format> wanted =
        *format == '\0' ? std::nullopt : std::optional(oslo::format_called(format));
    const auto plan = [&](const oslo::CheckpointIndex& index) {
      return oslo::plan_merged(index, wanted);
    };
    oslo::rewrite_folder(from, to, plan, tell);
  });
}

int oslo_convert_folder(const char* from, const char* to, const char* format) {
  return oslo::write("convert", to, [&](const oslo::TellProgress& tell) {
    if (std::string(format) == oslo::kPretrainedFolder) {
      oslo::rewrite_as_pretrained(from, to, tell);
      return;
    }
    const auto plan = [&](const oslo::CheckpointIndex& index) {
      return oslo::plan_converted(index, oslo::format_called(format));
    };
    oslo::rewrite_folder(from, to, plan, tell);
  });
}

int oslo_reshard_folder(const char* from, const char* to, const char* format, int setting_count,
                        const char* const* settings) {
  int tensor = 1, pipeline = 1;
  nlohmann::json parallel;
  try {
    const oslo::Config config = oslo::config_of(setting_count, settings);
    const oslo::ConfigValues& values = config.values();
    tensor = values.tensor_parallel_size;
    pipeline = values.pipeline_parallel_size;
    config.resolve(tensor * pipeline * values.data_parallel_size.value_or(1));
    parallel = config.to_json();
  } catch (const oslo::Error& error) {
    std::cerr << "oslo reshard: " << error.what() << "\n";
    return oslo::kMisused;
  }
  return oslo::write("reshard", to, [&](const oslo::TellProgress& tell) {
    const auto plan = [&](const oslo::CheckpointIndex& index) {
      oslo::FolderPlan plan =
          oslo::plan_resharded(index, tensor, pipeline, oslo::format_called(format));
      plan.parallel_config = parallel;
      return plan;
    };
    oslo::rewrite_folder(from, to, plan, tell);
  });
}
