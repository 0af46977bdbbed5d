#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace oslo {

/// The environment variables that this library reads, beside those of launchers
/// (`LaunchEnvironment`).
enum class Variable {
  backend,
  check,
  host,
  launcher,
  measure,
  plan_explain,
  plan_format,
  plan_memory,
  plan_page,
  plan_ranks,
  rates,
  timeout,
  verbose,
};

/// One of them, in the words of docs/configuration.md.
struct VariableRow {
  Variable variable;
  const char* name;
  const char* meaning;
  std::array<const char*, 2> choices = {};  ///< its values; none where `values` says them
  const char* values = "";
  const char* unset = "";  ///< what holds without it

  /// "0 or 1".
  std::string values_text() const;
};

// In the order of `Variable`.
inline constexpr VariableRow kVariables[] = {
    {.variable = Variable::backend,
     .name = "OSLO_BACKEND",
     .meaning = "what carries collectives, for groups whose config chooses none",
     .values = "auto, gloo, shm, nccl or fake",
     .unset = "auto"},
    {.variable = Variable::check,
     .name = "OSLO_CHECK",
     .meaning = "whether ranks compare what must be the same on all of them, at every operator",
     .choices = {"0", "1"},
     .unset = "the first steps of a program that seeds nowhere are compared"},
    {.variable = Variable::host,
     .name = "OSLO_HOST",
     .meaning = "for tests: ranks with different ones take each other to be on different hosts",
     .values = "any text",
     .unset = "the host itself"},
    {.variable = Variable::launcher,
     .name = "OSLO_LAUNCHER",
     .meaning = "who started the process: `oslo run` (1) or `oslo plan` (plan), which set it",
     .values = "plan, or any other text for ranks",
     .unset = "another launcher, or none"},
    {.variable = Variable::measure,
     .name = "OSLO_MEASURE",
     .meaning = "whether the rates that plans are compared by are measured anew",
     .choices = {"0", "1"},
     .unset = "0"},
    {.variable = Variable::plan_explain,
     .name = "OSLO_PLAN_EXPLAIN",
     .meaning = "whether a plan is printed with what moves, and why; `oslo plan` sets it",
     .choices = {"0", "1"},
     .unset = "0"},
    {.variable = Variable::plan_format,
     .name = "OSLO_PLAN_FORMAT",
     .meaning = "how a plan is printed; `oslo plan` sets it",
     .choices = {"table", "json"},
     .unset = "table"},
    {.variable = Variable::plan_memory,
     .name = "OSLO_PLAN_MEMORY",
     .meaning = "the memory of a rank that a plan is compared with; `oslo plan` sets it",
     .values = "a number of bytes, as 2GB or 1.5GiB",
     .unset = "what the config says"},
    {.variable = Variable::plan_page,
     .name = "OSLO_PLAN_PAGE",
     .meaning = "where `oslo plan --explain` writes its page; `oslo plan` sets it",
     .values = "a path",
     .unset = "no page is written"},
    {.variable = Variable::plan_ranks,
     .name = "OSLO_PLAN_RANKS",
     .meaning = "for how many ranks is planned; `oslo plan` sets it",
     .values = "a whole number from 1 to 65536",
     .unset = "the process trains"},
    {.variable = Variable::rates,
     .name = "OSLO_RATES",
     .meaning = "a file of rates that plans are compared by",
     .values = "a path",
     .unset = "those that were measured on this machine"},
    {.variable = Variable::timeout,
     .name = "OSLO_TIMEOUT",
     .meaning = "how many seconds ranks wait for each other",
     .values = "whole seconds from 1 to 604800 (a week)",
     .unset = "600"},
    {.variable = Variable::verbose,
     .name = "OSLO_VERBOSE",
     .meaning = "whether rank 0 says on standard error what world it has joined",
     .choices = {"0", "1"},
     .unset = "0"},
};

constexpr const VariableRow& row_of(Variable variable) {
  return kVariables[static_cast<size_t>(variable)];
}

/// What the environment says; nothing where it is not set, or empty. Throws `ConfigError` naming
/// the variable for a value that is none of its choices.
std::optional<std::string> read_variable(Variable variable);

/// The same of one whose choices are 0 and 1.
std::optional<bool> read_switch(Variable variable);

}  // namespace oslo
