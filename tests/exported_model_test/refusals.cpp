// Files that are damaged, or that this version does not know: refused when they are loaded, by the
// name of what is wrong.
#include <caffe2/serialize/inline_container.h>
#include <gmock/gmock.h>

#include <fstream>
#include <iterator>
#include <set>

#include "tests/exported_model_test/python_run.h"
#include "tests/support/damage.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_directory.h"

namespace oslo::test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kModel = "models/model.json";

/// A copy of a program's file with records changed; an empty one is left out.
void rewrite(const std::string& program, const std::filesystem::path& to,
             const std::function<void(std::string& name, std::string& content)>& change) {
  caffe2::serialize::PyTorchStreamReader reader((kExported / (program + ".pt2")).string());
  caffe2::serialize::PyTorchStreamWriter writer(to.string());
  for (std::string name : reader.getAllRecords()) {
    // Those that the writer adds itself.
    if (name.starts_with(".data/") || name == "byteorder" || name == "version") continue;
    const auto [bytes, size] = reader.getRecord(name);
    std::string content(static_cast<const char*>(bytes.get()), size);
    change(name, content);
    if (!name.empty()) writer.writeRecord(name, content.data(), content.size());
  }
  writer.writeEndOfFile();
}

class Changed {
 public:
  /// What load_exported says of a program whose JSON was changed.
  std::string error(const std::string& program, const std::function<void(json&)>& edit,
                    const std::string& record = kModel) {
    return error_with(program, [&](const std::string& name, std::string& content) {
      if (name != record) return;
      json document = json::parse(content);
      edit(document);
      content = document.dump();
    });
  }

  std::string error_with(const std::string& program,
                         const std::function<void(std::string&, std::string&)>& change) {
    const auto path = folder_ / ("changed" + std::to_string(++files_) + ".pt2");
    rewrite(program, path, change);
    const std::string said = error_of([&] { load_exported(path); });
    EXPECT_THAT(said, HasSubstr(path.string()));
    return said;
  }

  std::filesystem::path unchanged(const std::string& program) {
    rewrite(program, folder_ / "same.pt2", [](const std::string&, const std::string&) {});
    return folder_ / "same.pt2";
  }

 private:
  TemporaryDirectory folder_;
  int files_ = 0;
};

/// The first node of a target.
json& node_of(json& model, const std::string& target) {
  for (json& node : model["graph_module"]["graph"]["nodes"]) {
    if (node["target"] == target) return node;
  }
  throw std::runtime_error("no node " + target);
}

constexpr const char* kLinear = "torch.ops.aten.linear.default";

TEST(ExportedRefusals, AnUnchangedCopyLoads) {
  Changed changed;
  EXPECT_NE(load_exported(changed.unchanged("mlp")), nullptr);
}

TEST(ExportedRefusals, UnknownVersions) {
  Changed changed;
  const auto version = [&](int major, int minor) {
    return changed.error("mlp", [&](json& model) {
      model["schema_version"] = {{"major", major}, {"minor", minor}};
    });
  };
  EXPECT_THAT(version(9, 0), AllOf(HasSubstr("has schema version 9.0, and 8.0 to 8.17 are read"),
                                   HasSubstr("PyTorch 2.11")));
  EXPECT_THAT(version(8, 18), HasSubstr("schema version 8.18"));
  EXPECT_THAT(version(7, 3), HasSubstr("schema version 7.3"));
  EXPECT_THAT(changed.error("mlp", [](json& model) { model["opset_version"]["aten"] = 11; }),
              HasSubstr("uses version 11 of the operators"));
  EXPECT_THAT(changed.error("mlp", [](json& model) { model.erase("schema_version"); }),
              HasSubstr("it has no 'schema_version'"));
  EXPECT_THAT(changed.error_with("mlp",
                                 [](std::string& name, std::string& content) {
                                   if (name == "archive_version") content = "1";
                                 }),
              HasSubstr("of version '1'"));
  EXPECT_THAT(changed.error_with("mlp",
                                 [](std::string& name, std::string&) {
                                   if (name == "archive_format") name.clear();
                                 }),
              HasSubstr("is no exported program"));
}

TEST(ExportedRefusals, UnknownOperators) {
  Changed changed;
  const auto target = [&](const std::string& name) {
    return changed.error("mlp", [&](json& model) { node_of(model, kLinear)["target"] = name; });
  };
  EXPECT_THAT(target("torch.ops.mylib.linear.default"),
              AllOf(HasSubstr("node linear (torch.ops.mylib.linear.default)"),
                    HasSubstr("no operator mylib::linear"), HasSubstr("link the library")));
  EXPECT_THAT(target("torch.ops.aten.linear.other"), HasSubstr("aten::linear.other"));
  EXPECT_THAT(target("torch.ops.higher_order.cond"),
              HasSubstr("operators around graphs are supported for torch.no_grad"));
  EXPECT_THAT(target("os.system"), HasSubstr("is no operator"));
  EXPECT_THAT(target("torch.ops.aten.from_file.default"), HasSubstr("may not open files"));
}

TEST(ExportedRefusals, GraphsThatDoNotTypeCheck) {
  Changed changed;
  const auto linear = [&](const std::function<void(json & node)>& edit) {
    return changed.error("mlp", [&](json& model) { edit(node_of(model, kLinear)); });
  };
  const auto argument = [&](const json& value) {
    return linear([&](json& node) { node["inputs"][1]["arg"] = value; });
  };
  EXPECT_THAT(argument({{"as_tensor", {{"name", "nobody"}}}}),
              AllOf(HasSubstr("argument weight"), HasSubstr("nothing before it gives 'nobody'")));
  // Later in the graph is no better.
  EXPECT_THAT(argument({{"as_tensor", {{"name", "gelu"}}}}), HasSubstr("'gelu'"));
  EXPECT_THAT(argument({{"as_tensor", {{"name", "sym_size_int_1"}}}}),
              HasSubstr("is an integer, and a tensor is needed"));
  EXPECT_THAT(argument({{"as_ints", {1, 2}}}), HasSubstr("the operator takes a Tensor"));
  EXPECT_THAT(argument({{"as_none", true}}), HasSubstr("given as 'as_none'"));
  EXPECT_THAT(argument({{"as_custom_obj", {{"name", "x"}, {"class_fqn", "y"}}}}),
              HasSubstr("arguments of the kind 'as_custom_obj' are not supported"));
  EXPECT_THAT(linear([](json& node) { node["inputs"][1]["name"] = "wieght"; }),
              AllOf(HasSubstr("no argument 'wieght'"), HasSubstr("aten::linear(")));
  EXPECT_THAT(linear([](json& node) { node["inputs"].erase(1); }),
              HasSubstr("the argument 'weight' is missing"));
  EXPECT_THAT(linear([](json& node) { node["inputs"].push_back(node["inputs"][1]); }),
              HasSubstr("'weight' is there twice"));
  EXPECT_THAT(linear([](json& node) { node["outputs"] = json::array(); }),
              HasSubstr("it has 0 results, and the operator gives 1"));
  EXPECT_THAT(linear([](json& node) {
                node["outputs"][0] = {{"as_tensors", {{{"name", "a"}}, {{"name", "b"}}}}};
              }),
              HasSubstr("result 0 is written as 'as_tensors'"));
  EXPECT_THAT(linear([](json& node) { node["outputs"][0]["as_tensor"]["name"] = "gain"; }),
              HasSubstr("nothing before it gives 'linear' a value"));
  EXPECT_THAT(linear([](json& node) { node["outputs"][0]["as_tensor"]["name"] = "p_up_bias"; }),
              HasSubstr("the name 'p_up_bias' has a value already"));
  EXPECT_THAT(linear([](json& node) { node["inputs"] = 3; }), HasSubstr("expected a list, seen 3"));
}

TEST(ExportedRefusals, GraphsInsideThatDoNotFitTheirNode) {
  Changed changed;
  constexpr const char* kScope = "torch.ops.higher_order.wrap_with_set_grad_enabled";
  const auto scope = [&](const std::function<void(json & node)>& edit) {
    return changed.error("mlp", [&](json& model) { edit(node_of(model, kScope)); });
  };
  EXPECT_THAT(scope([](json& node) { node["inputs"].push_back(node["inputs"][2]); }),
              HasSubstr("its graph has the inputs (as_tensor)"));
  EXPECT_THAT(scope([](json& node) {
                node["inputs"][0]["arg"] = {{"as_int", 1}};
              }),
              HasSubstr("'as_bool' is what stands there"));
  EXPECT_THAT(scope([](json& node) {
                node["inputs"][1]["arg"]["as_graph"]["graph"]["outputs"] = json::array();
              }),
              HasSubstr("its graph has the results ()"));
}

TEST(ExportedRefusals, ProgramsInAnotherForm) {
  Changed changed;
  EXPECT_THAT(changed.error("mlp",
                            [](json& model) {
                              model["graph_module"]["signature"]["output_specs"][1] = {
                                  {"buffer_mutation",
                                   {{"arg", {{"name", "dropout"}}}, {"buffer_name", "calls"}}}};
                            }),
              AllOf(HasSubstr("'buffer_mutation'"), HasSubstr("before run_decompositions")));
  EXPECT_THAT(changed.error("mlp",
                            [](json& model) {
                              auto& inputs = model["graph_module"]["signature"]["input_specs"];
                              inputs.erase(inputs.size() - 1);
                            }),
              HasSubstr("inputs and its signature"));
}

TEST(ExportedRefusals, TensorsThatAreNotWhatTheFileSays) {
  Changed changed;
  const auto weight = [&](const std::function<void(json & entry)>& edit) {
    return changed.error(
        "mlp", [&](json& config) { edit(config["config"]["up.weight"]); },
        "data/weights/model_weights_config.json");
  };
  EXPECT_THAT(weight([](json& entry) { entry["tensor_meta"]["sizes"][0]["as_int"] = 12; }),
              AllOf(HasSubstr("tensor 'up.weight' reaches over 672 bytes"), HasSubstr("has 616")));
  EXPECT_THAT(
      weight([](json& entry) { entry["tensor_meta"]["sizes"][0]["as_int"] = 9223372036854775807; }),
      HasSubstr("its sizes overflow"));
  EXPECT_THAT(weight([](json& entry) { entry["tensor_meta"]["strides"][0]["as_int"] = -7; }),
              HasSubstr("-7 is negative"));
  EXPECT_THAT(weight([](json& entry) { entry["tensor_meta"]["dtype"] = 99; }),
              HasSubstr("no type of elements with the number 99"));
  EXPECT_THAT(weight([](json& entry) { entry["use_pickle"] = true; }),
              HasSubstr("a pickled object"));
  EXPECT_THAT(weight([](json& entry) { entry["path_name"] = "../../models/other"; }),
              HasSubstr("has no record"));
  EXPECT_THAT(changed.error(
                  "mlp", [](json& config) { config["config"].erase("up.weight"); },
                  "data/weights/model_weights_config.json"),
              HasSubstr("has no tensor 'up.weight', which its program names"));
}

TEST(ExportedRefusals, NamesThatNoModuleCanHave) {
  Changed changed;
  EXPECT_THAT(changed.error("mlp",
                            [](json& model) {
                              auto& inputs = model["graph_module"]["signature"]["input_specs"];
                              inputs[2] = inputs[1];
                            }),
              HasSubstr("two tensors are named 'up.weight'"));
  const auto called = [&](const std::string& path) {
    return changed.error("mlp", [&](json& model) {
      model["graph_module"]["module_call_graph"].push_back({{"fqn", path}, {"signature", nullptr}});
    });
  };
  EXPECT_THAT(called("a..b"), HasSubstr("nothing between two dots"));
  std::string deep = "a";
  for (int i = 0; i < 5000; ++i) deep += ".a";
  EXPECT_THAT(called(deep), HasSubstr("nested deeper than the 100 levels"));
}

TEST(ExportedRefusals, CutFilesAndFlippedBytes) {
  std::ifstream file(kExported / "mlp.pt2", std::ios::binary);
  const std::string whole((std::istreambuf_iterator<char>(file)), {});
  const TemporaryDirectory folder;
  const auto path = folder / "damaged.pt2";
  const auto write = [&](const std::string& content) {
    std::ofstream(path, std::ios::binary).write(content.data(), std::streamsize(content.size()));
  };
  for (const size_t bytes : {size_t{0}, size_t{1}, whole.size() / 2, whole.size() - 1}) {
    write(whole.substr(0, bytes));
    EXPECT_THAT(error_of([&] { load_exported(path); }), HasSubstr(path.string())) << bytes;
  }
  EXPECT_THAT(error_of([&] { load_exported(folder / "missing.pt2"); }), HasSubstr("missing.pt2"));
  EXPECT_THAT(error_of([&] { load_exported(kExported / "mlp.bin"); }),
              HasSubstr("no exported program"));
  // Whatever byte is another one, the file loads as it was, or is refused.
  Dice dice(11);
  for (int i = damage_count(200); i > 0; --i) {
    std::string content = whole;
    content[dice.below(content.size())] ^= static_cast<char>(1 + dice.below(255));
    write(content);
    try {
      make_seeded(1, [&] { return load_exported(path); });
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(path.string()));
    }
  }
}

/// Of the JSON alone, past the checksums: a graph that is nonsense is refused, and nothing else
/// happens.
TEST(ExportedRefusals, NonsenseInTheGraph) {
  const TemporaryDirectory folder;
  const auto path = folder / "nonsense.pt2";
  Dice dice(12);
  for (int i = damage_count(60); i > 0; --i) {
    rewrite("mlp", path, [&](const std::string& name, std::string& content) {
      if (name != kModel) return;
      for (size_t edits = 1 + dice.below(3); edits > 0; --edits) {
        const std::string& word = dice.one_of(hostile_words());
        content.replace(dice.below(content.size()), dice.below(20), word);
      }
    });
    try {
      make_seeded(1, [&] { return load_exported(path); });
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(path.string()));
    }
  }
}

}  // namespace
}  // namespace oslo::test
