#include "tools/oslo/folders/folder_commands.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/storage/format.h"
#include "oslo_cpp/folders/folder_commands.h"
#include "tools/oslo/base/library_entry.h"

namespace oslo::tool {
namespace {

constexpr const char* kMergeExamples = R"(Examples:
  oslo merge parallel_ckpt merged_ckpt
  oslo merge parallel_ckpt merged_ckpt --format safetensors

Whole tensors under the names of the model as its author wrote it, for one process or for Python.
It needs no ranks and no model, and memory for two tensors. OUT takes its name when all of it is on
the disk. docs/checkpoints.md
)";

constexpr const char* kReshardExamples = R"(Examples:
  oslo reshard parallel_ckpt for_eight --set tensor_parallel_size=4 --set pipeline_parallel_size=2
  oslo reshard merged_ckpt for_two --set tensor_parallel_size=2

A load takes any layout, so that this only decides what a rank finds in one file. Settings are those
of the configuration; one without a section is of "model_parallelism". docs/checkpoints.md
)";

constexpr const char* kConvertExamples = R"(Examples:
  oslo convert parallel_ckpt as_bin --format bin
  oslo convert merged_ckpt for_python --format huggingface
  oslo convert Llama-3.2-1B as_checkpoint --format safetensors

"huggingface" writes what transformers' from_pretrained opens; the checkpoint's config.json says of
which family it is. docs/checkpoints.md
)";

constexpr const char* kVerifyExamples = R"(Examples:
  oslo verify parallel_ckpt && echo sound

Reads every byte: hashes, headers, checksums, and that the parts of each tensor make it up. Exit code
1 where anything is wrong, and what it is. docs/checkpoints.md
)";

struct FolderWords {
  std::string from, to, format;
  std::vector<std::string> settings;
};

CLI::App* add_command(CLI::App& app, const char* name, const char* what, const char* examples) {
  CLI::App* const command = app.add_subcommand(name, what);
  command->get_formatter()->column_width(26);
  command->footer(examples);
  return command;
}

void add_folders(CLI::App& command, FolderWords& words) {
  command.add_option("folder", words.from, "a checkpoint, or a folder of Hugging Face's")
      ->required();
  command.add_option("out", words.to, "the folder to write")->required();
}

std::vector<std::string> format_names() {
  std::vector<std::string> names;
  for (const FormatNames& each : kFormats) names.emplace_back(each.name);
  return names;
}

CLI::Option* add_format(CLI::App& command, FolderWords& words, std::vector<std::string> formats,
                        const std::string& what) {
  std::string choices;
  for (const std::string& format : formats) choices += (choices.empty() ? "" : ", ") + format;
  return command.add_option("--format", words.format, choices + what)
      ->check(CLI::IsMember(std::move(formats)).description(""));
}

int call_on_path(const char* command, const char* name, const std::string& path) {
  int exit_code = 0;
  void* const entry = library_entry(command, name, exit_code);
  if (entry == nullptr) return exit_code;
  return reinterpret_cast<int (*)(const char*)>(entry)(path.c_str());
}

int call_on_folders(const char* command, const char* name, const FolderWords& words) {
  int exit_code = 0;
  void* const entry = library_entry(command, name, exit_code);
  if (entry == nullptr) return exit_code;
  using Call = int (*)(const char*, const char*, const char*);
  return reinterpret_cast<Call>(entry)(words.from.c_str(), words.to.c_str(), words.format.c_str());
}

int reshard(const FolderWords& words) {
  int exit_code = 0;
  void* const entry = library_entry("reshard", "oslo_reshard_folder", exit_code);
  if (entry == nullptr) return exit_code;
  std::vector<const char*> settings;
  for (const std::string& setting : words.settings) settings.push_back(setting.c_str());
  using Call = int (*)(const char*, const char*, const char*, int, const char* const*);
  return reinterpret_cast<Call>(entry)(words.from.c_str(), words.to.c_str(), words.format.c_str(),
                                       static_cast<int>(settings.size()), settings.data());
}

}  // namespace

void add_merge_command(CLI::App& app, Invocation& invocation) {
  CLI::App* const command = add_command(
      app, "merge", "Joins the parts of a checkpoint into whole tensors.", kMergeExamples);
  const auto words = std::make_shared<FolderWords>();
  add_folders(*command, *words);
  add_format(*command, *words, format_names(), "; unless given, a file of each");
  command->callback([&invocation, words] {
    invocation.exit_code = call_on_folders("merge", "oslo_merge_folder", *words);
  });
}

void add_reshard_command(CLI::App& app, Invocation& invocation) {
  CLI::App* const command = add_command(
      app, "reshard", "Divides a checkpoint among other ranks' files.", kReshardExamples);
  const auto words = std::make_shared<FolderWords>();
  const std::string unasked = names_of(kDefaultFormat).name;
  words->format = unasked;
  add_folders(*command, *words);
  command->add_option("--set", words->settings, "NAME=VALUE: how many ranks there will be")
      ->required()
      ->allow_extra_args(false);
  add_format(*command, *words, format_names(), "; " + unasked + " unless given");
  command->callback([&invocation, words] { invocation.exit_code = reshard(*words); });
}

void add_convert_command(CLI::App& app, Invocation& invocation) {
  CLI::App* const command =
      add_command(app, "convert", "Writes a checkpoint in another format.", kConvertExamples);
  const auto words = std::make_shared<FolderWords>();
  add_folders(*command, *words);
  std::vector<std::string> formats = format_names();
  formats.emplace_back(kPretrainedFolder);
  add_format(*command, *words, std::move(formats), "")->required();
  command->callback([&invocation, words] {
    invocation.exit_code = call_on_folders("convert", "oslo_convert_folder", *words);
  });
}

void add_verify_command(CLI::App& app, Invocation& invocation) {
  CLI::App* const command = add_command(
      app, "verify", "Reads all of a checkpoint and says whether it is sound.", kVerifyExamples);
  const auto words = std::make_shared<FolderWords>();
  command->add_option("folder", words->from, "a checkpoint, or a folder of Hugging Face's")
      ->required();
  command->callback([&invocation, words] {
    invocation.exit_code = call_on_path("verify", "oslo_verify_folder", words->from);
  });
}

int inspect_folder(const std::string& path) {
  return call_on_path("inspect", "oslo_inspect_folder", path);
}

}  // namespace oslo::tool
