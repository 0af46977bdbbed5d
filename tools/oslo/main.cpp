#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include "tools/oslo/base/command.h"
#include "tools/oslo/folders/folder_commands.h"
#include "tools/oslo/folders/inspect_command.h"
#include "tools/oslo/plan/plan_command.h"
#include "tools/oslo/run/run_command.h"
#include "tools/oslo/schedule/schedule_command.h"
#include "tools/oslo/train/train_command.h"

namespace {

using oslo::tool::Invocation;

constexpr int kMisuse = 2;

struct Command {
  const char* name;
  void (*add)(CLI::App&, Invocation&);
  bool starts_a_program;
};

constexpr Command kCommands[] = {
    {"run", oslo::tool::add_run_command, true},
    {"train", oslo::tool::add_train_command, false},
    {"plan", oslo::tool::add_plan_command, true},
    {"schedule", oslo::tool::add_schedule_command, false},
    {"inspect", oslo::tool::add_inspect_command, false},
    {"merge", oslo::tool::add_merge_command, false},
    {"reshard", oslo::tool::add_reshard_command, false},
    {"convert", oslo::tool::add_convert_command, false},
    {"verify", oslo::tool::add_verify_command, false},
};

// A command that starts a program stops reading options where the program begins: what follows it,
// or follows the first `--`, belongs to the program and is never looked at.
void split_program(CLI::App& app, std::vector<std::string>& words, Invocation& invocation) {
  const auto starts_it = [&](const Command& command) {
    return command.starts_a_program && !words.empty() && words[0] == command.name;
  };
  if (std::none_of(std::begin(kCommands), std::end(kCommands), starts_it)) return;
  const CLI::App* const command = app.get_subcommand(words[0]);
  size_t end = 1;
  size_t begin = words.size();
  for (; end < words.size(); ++end) {
    const std::string& word = words[end];
    if (word == "--" || word.size() < 2 || word[0] != '-') {
      begin = word == "--" ? end + 1 : end;
      break;
    }
    const CLI::Option* const option = command->get_option_no_throw(word);
    if (option != nullptr && option->get_items_expected_max() > 0) ++end;
  }
  invocation.program.assign(words.begin() + std::min(begin, words.size()), words.end());
  words.resize(std::min(end, words.size()));
}

std::string names_of_commands() {
  std::string names;
  for (const Command& command : kCommands) {
    names += std::string(names.empty() ? "" : ", ") + command.name;
  }
  return names;
}

/// What is wrong with the words, and how the command is written.
void tell_misuse(const CLI::App& app, const std::vector<std::string>& words,
                 const CLI::ParseError& error) {
  const bool named = !words.empty() && words[0][0] != '-';
  const auto known = [&](const Command& command) { return words[0] == command.name; };
  const bool is_command = named && std::ranges::any_of(kCommands, known);
  if (named && !is_command) {
    std::cerr << "oslo: there is no command '" << words[0] << "'; the commands are "
              << names_of_commands() << "\n";
    return;
  }
  const CLI::App& command = is_command ? *app.get_subcommand(words[0]) : app;
  const std::string name = is_command ? "oslo " + words[0] : "oslo";
  std::cerr << name << ": " << error.what() << "\n";
  if (const auto* format = dynamic_cast<const CLI::Formatter*>(command.get_formatter().get())) {
    std::cerr << format->make_usage(&command, name);
  }
  std::cerr << "`" << name << " --help` tells more\n";
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains LibTorch models over many ranks.", "oslo");
  app.require_subcommand(1);
  app.set_version_flag("--version", "oslo_cpp " OSLO_VERSION);
  app.get_formatter()->column_width(26);
  Invocation invocation;
  for (const Command& command : kCommands) command.add(app, invocation);

  std::vector<std::string> words(argv + 1, argv + argc);
  split_program(app, words, invocation);
  std::vector<std::string> reversed(words.rbegin(), words.rend());  // the order CLI11 wants
  try {
    app.parse(reversed);
  } catch (const CLI::Success& asked_for_help) {
    return app.exit(asked_for_help);
  } catch (const CLI::ParseError& error) {
    tell_misuse(app, words, error);
    return kMisuse;
  }
  return invocation.exit_code;
}
