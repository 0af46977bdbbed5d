// The checks of a document against the schema, and their messages.
#include <algorithm>
#include <limits>
#include <utility>

#include "checkpoint/storage/outside_text.h"
#include "mpu/base/bytes.h"
#include "mpu/base/error.h"
#include "mpu/base/words/nearest_name.h"
#include "oslo_cpp/config/config_json.h"
#include "oslo_cpp/config/config_schema.h"
#include "parallelizers/plan/layers/style.h"

namespace oslo {
namespace {

using Json = nlohmann::ordered_json;
using Kind = ConfigKey::Kind;

std::string list(const std::vector<std::string>& names, const char* between = ", ") {
  std::string text;
  for (const std::string& name : names) {
    text += (text.empty() ? "" : between) + name;
  }
  return text;
}

// Full paths of every key called `name` below `key`.
void find_everywhere(const ConfigKey& key, const std::string& path, std::string_view name,
                     std::vector<std::string>& found) {
  for (const ConfigKey& child : key.keys) {
    std::string child_path = join_keys(path, child.name);
    if (child.name == name) {
      found.push_back(in_quotes(child_path));
    }
    find_everywhere(child, child_path, name, found);
  }
}

std::string expected(const ConfigKey& key) {
  std::string text;
  switch (key.kind) {
    case Kind::object:
      text = "an object";
      break;
    case Kind::flag:
      text = "true or false";
      break;
    case Kind::count:
      text = c10::str("an integer from ", key.minimum, " to ", key.maximum);
      break;
    case Kind::amount:
      text = "a number from 0";
      break;
    case Kind::many:
      text = "an array of objects";
      break;
    case Kind::stages:
      text = "an array of integers from 0, one stage per layer";
      break;
    case Kind::choice:
      text = "one of " + list(key.choices);
      break;
    case Kind::sized:
      text = c10::str("an integer from 1 to ", key.maximum, " or an object with a \"size\"");
      break;
    case Kind::words:
      text = key.choices.empty() ? "an array of module path patterns"
                                 : "an array of " + list(key.choices);
      break;
    case Kind::text:
      text = "a string";
      break;
    case Kind::bytes:
      text = "a number of bytes, or a text such as \"2GB\" or \"1.5GiB\"";
      break;
    case Kind::plan:
    case Kind::where:
      text = "an object of module path patterns";
      break;
    case Kind::numbers:
      text = "an array of numbers from 0";
      break;
    case Kind::any:
      text = "an object";
      break;
  }
  return key.nullable ? text + ", or null" : text;
}

bool is_integer(const Json& value, int64_t low, int64_t high) {
  if (!value.is_number_integer()) {
    return false;
  }
  if (value.is_number_unsigned()) {
    uint64_t seen = value.get<uint64_t>();
    return seen >= static_cast<uint64_t>(low) && seen <= static_cast<uint64_t>(high);
  }
  int64_t seen = value.get<int64_t>();
  return seen >= low && seen <= high;
}

bool is_one_of(const std::vector<std::string>& choices, const Json& value) {
  return value.is_string() &&
         std::count(choices.begin(), choices.end(), value.get_ref<const std::string&>()) > 0;
}

bool has_right_type(const ConfigKey& key, const Json& value) {
  switch (key.kind) {
    case Kind::object:
    case Kind::plan:
    case Kind::where:
      return value.is_object();
    case Kind::many:
    case Kind::words:
      return value.is_array();
    case Kind::text:
      return value.is_string();
    case Kind::bytes:
      return is_integer(value, 1, std::numeric_limits<int64_t>::max()) ||
             (value.is_string() && parse_bytes(value.get_ref<const std::string&>()));
    case Kind::flag:
      return value.is_boolean();
    case Kind::count:
      return is_integer(value, key.minimum, key.maximum);
    case Kind::amount:
      return value.is_number() && value.get<double>() >= 0;
    case Kind::stages:
      return value.is_array();
    case Kind::choice:
      return is_one_of(key.choices, value);
    case Kind::sized:
      return value.is_object() || is_integer(value, 1, key.maximum);
    case Kind::numbers:
      return value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& each) {
               return each.is_number() && each.get<double>() >= 0;
             });
    case Kind::any:
      return value.is_object();
  }
  return false;
}

void check_pattern(const char* kind, const std::string& pattern) {
  std::string_view rest = pattern;
  while (true) {
    std::string_view component = rest.substr(0, rest.find('.'));
    OSLO_CHECK_AS(config, !component.empty(), kind, " pattern ", in_quotes(pattern),
                  " has an empty path component: write module names and '*' joined by single dots");
    OSLO_CHECK_AS(config, component == "*" || component.find('*') == std::string_view::npos, kind,
                  " pattern ", in_quotes(pattern),
                  ": '*' stands for one whole path component, seen ", in_quotes(component),
                  "; write '*' or the full name");
    if (component.size() == rest.size()) {
      return;
    }
    rest.remove_prefix(component.size() + 1);
  }
}

/// A stage, or several: of what each of them computes with a copy of its own.
void check_stages_of(const ConfigKey& key, const std::string& pattern, const Json& value) {
  const std::vector<Json> stages =
      value.is_array() ? value.get<std::vector<Json>>() : std::vector<Json>{value};
  const bool good =
      !stages.empty() && std::all_of(stages.begin(), stages.end(), [&](const Json& stage) {
        return is_integer(stage, 0, key.maximum);
      });
  OSLO_CHECK_AS(config, good, "stages pattern ", in_quotes(pattern),
                ": expected a stage from 0 to ", key.maximum, ", or an array of stages; seen ",
                describe(value));
}

void check(const ConfigKey& key, const std::string& path, const Json& value,
           const ConfigKey* everywhere);

/// Each of an array as an object of its own.
void check_each(const ConfigKey& key, const std::string& path, const Json& value,
                const ConfigKey* everywhere) {
  ConfigKey one = key;
  one.kind = Kind::object;
  for (size_t i = 0; i < value.size(); ++i) {
    check(one, c10::str(path, "[", i, "]"), value[i], everywhere);
  }
}

void check(const ConfigKey& key, const std::string& path, const Json& value,
           const ConfigKey* everywhere) {
  if (key.nullable && value.is_null()) {
    return;
  }
  OSLO_CHECK_AS(config, has_right_type(key, value), path.empty() ? "the config" : in_quotes(path),
                ": expected ", expected(key), "; seen ", describe(value));
  if (key.kind == Kind::stages) {
    for (size_t i = 0; i < value.size(); ++i) {
      OSLO_CHECK_AS(config, is_integer(value[i], 0, key.maximum), "'", path, "[", i,
                    "]': expected a stage, an integer from 0; seen ", describe(value[i]));
    }
  }
  if (key.kind == Kind::any) return;
  if (key.kind == Kind::many) return check_each(key, path, value, everywhere);
  if (key.kind == Kind::words) {
    for (size_t i = 0; i < value.size(); ++i) {
      const bool good =
          key.choices.empty() ? value[i].is_string() : is_one_of(key.choices, value[i]);
      OSLO_CHECK_AS(config, good, "'", path, "[", i, "]': expected ",
                    key.choices.empty() ? "a module path pattern" : "one of " + list(key.choices),
                    "; seen ", describe(value[i]));
      if (key.choices.empty()) check_pattern(key.name.c_str(), value[i].get<std::string>());
    }
  }
  if (!value.is_object()) {
    return;
  }
  for (const auto& [name, below] : value.items()) {
    if (key.kind == Kind::plan) {
      check_pattern("plan", name);
      const std::string where = "plan pattern " + in_quotes(name);
      OSLO_CHECK_AS(config, below.is_string(), where, ": expected a placement, one of ",
                    list(key.choices), "; seen ", describe(below));
      const auto& text = below.get_ref<const std::string&>();
      OSLO_CHECK_AS(config, printable(text) == text, where,
                    " has no such placement: ", describe(below));
      parse_axis_styles(below.get<std::string>(), where);
      continue;
    }
    if (key.kind == Kind::where) {
      check_pattern("stages", name);
      check_stages_of(key, name, below);
      continue;
    }
    const ConfigKey* child = key.find(name);
    if (child == nullptr) {
      fail_unknown_key(key, path, name, everywhere);
    }
    check(*child, join_keys(path, name), below, everywhere);
  }
}

}  // namespace

void check_config(const Json& document) {
  check(config_schema(config_dialect(document)), "", document, nullptr);
}

void check_config(const ConfigKey& schema, const Json& document) {
  check(schema, "", document, &schema);
}

void fail_unknown_key(const ConfigKey& parent, const std::string& path, const std::string& name,
                      const ConfigKey* everywhere) {
  std::vector<std::string> names;
  for (const ConfigKey& child : parent.keys) {
    names.push_back(child.name);
  }
  std::vector<std::string> elsewhere;
  find_everywhere(everywhere == nullptr ? config_schema(ConfigDialect::none) : *everywhere, "",
                  name, elsewhere);
  std::erase(elsewhere, in_quotes(join_keys(path, name)));  // a key of another dialect
  const std::string where = path.empty() ? "at the top" : "in " + in_quotes(path);
  const std::string unknown = "unknown key " + in_quotes(join_keys(path, name));
  const std::string* const meant = name_meant(names, name);
  if (meant == nullptr || (!elsewhere.empty() && !is_near(name, *meant))) {
    fail_as(
        ErrorKind::config, unknown, "; ",
        elsewhere.empty() ? "" : in_quotes(name) + " belongs in " + list(elsewhere, " or ") + "; ",
        names.size() == 1 ? c10::str("the only name ", where, " is ", in_quotes(names[0]))
                          : c10::str("the names ", where, " are ", list(names)));
  }
  fail_as(
      ErrorKind::config, unknown, "; the nearest valid name ", where, " is ", in_quotes(*meant),
      " (of ", list(names), ")",
      elsewhere.empty() ? "" : "; " + in_quotes(name) + " belongs in " + list(elsewhere, " or "));
}

}  // namespace oslo
