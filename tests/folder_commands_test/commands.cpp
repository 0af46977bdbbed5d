// `oslo inspect, merge, reshard, convert, verify` on folders: what they write loads bit for bit,
// and what they are refused leaves nothing behind.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/formats/torch_bin/torch_bin.h"
#include "checkpoint/index/checkpoint_index.h"
#include "tests/folder_commands_test/saved_folder.h"
#include "tests/support/files.h"

namespace oslo::folder_commands_test {
namespace {

using test::contents;
using test::write_contents;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Names = std::set<std::string>;

Names names_in(const std::string& folder) {
  Names names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

TEST_F(FolderCommands, MergeWritesWhatMergingRanksWrite) {
  EXPECT_THAT(oslo({"merge", ckpt(), in("merged")}),
              AllOf(HasSubstr("merged: "), HasSubstr(" of tensors written")));
  expect_loads(in("merged"));
  on_grid({"tensor 2", 2}, 2, [&](ParallelModel& parallel, Gpt2&) {
    parallel.from_parallelized(ckpt());
    parallel.save_parallelized(in("by ranks"), SaveOptions()
                                                   .merge_checkpoints(true)
                                                   .config(small_config().to_json())
                                                   .extra({{"step", 7}}));
  });
  EXPECT_EQ(names_in(in("merged")), names_in(in("by ranks")));
  for (const char* name : {"model.safetensors", "config.json", "extra.json"}) {
    EXPECT_EQ(contents(in("merged/") + name), contents(in("by ranks/") + name)) << name;
  }
  const StateDict bin = read_torch_bin(in("merged/pytorch_model.bin"));
  EXPECT_TRUE(bin.at("lm_head.weight").is_alias_of(bin.at("transformer.wte.weight")));
  for (const auto& [name, tensor] : read_torch_bin(in("by ranks/pytorch_model.bin"))) {
    EXPECT_TRUE(torch::equal(tensor, bin.at(name))) << name;
  }
  oslo({"merge", ckpt(), in("one"), "--format", "safetensors"});
  EXPECT_EQ(names_in(in("one")).count("pytorch_model.bin"), 0u);
}

TEST_F(FolderCommands, ReshardDividesTheFilesAmongOtherRanks) {
  oslo({"reshard", ckpt(), in("six"), "--set", "tensor_parallel_size=3", "--set",
        "model_parallelism.pipeline_parallel_size=2"});
  Names names = {kIndexName, "config.json", "extra.json", "parallel_config.json"};
  for (const char* place : {"0_pp_0", "1_pp_0", "2_pp_0", "0_pp_1", "1_pp_1", "2_pp_1"}) {
    names.insert(std::string("pytorch_model_tp_") + place + ".safetensors");
  }
  EXPECT_EQ(names_in(in("six")), names);
  const CheckpointIndex index = CheckpointIndex::read(in("six/") + kIndexName);
  EXPECT_EQ(describe(index.mesh), "tensor_parallel_size 3, pipeline_parallel_size 2");
  EXPECT_EQ(to_string(index.tensors.at("transformer.h.0.attn.c_attn.weight").parts[0].cuts),
            "dim 0: part 0 of 3 x (7+7+6)");
  const auto config = nlohmann::json::parse(contents(in("six/parallel_config.json")));
  EXPECT_EQ(config["model_parallelism"]["tensor_parallel_size"], 3);
  expect_loads(in("six"));
  on_grid({"tensor 3 x pipeline 2", 3, 2}, 2, [&](ParallelModel& parallel, Gpt2& model) {
    parallel.from_parallelized(in("six"));
    expect_values(model, make_gpt2(1));
  });
  // Of whole tensors, to parts in the other format, and back to one file.
  oslo({"merge", in("six"), in("merged")});
  oslo({"reshard", in("merged"), in("four"), "--set", "tensor_parallel_size=4", "--format", "bin"});
  EXPECT_EQ(names_in(in("four")).count("pytorch_model_tp_3_pp_0.bin"), 1u);
  expect_loads(in("four"));
}

TEST_F(FolderCommands, OptimizersAndRandomStatesGoAlong) {
  on_grid({"tensor 2 x pipeline 2", 2, 2}, 1, [&](ParallelModel& parallel, Gpt2& model) {
    torch::optim::AdamW optimizer(model->parameters());
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(1));
    schedule.forward_backward_step({torch::arange(18).view({2, 9})},
                                   [&](const std::vector<torch::Tensor>& micro) {
                                     return model->forward(micro[0]).square().mean();
                                   });
    optimizer.step();
    parallel.save_parallelized(ckpt(), SaveOptions().optimizer(&optimizer));
  });
  oslo({"reshard", ckpt(), in("three"), "--set", "tensor_parallel_size=3"});
  oslo({"convert", in("three"), in("bin"), "--format", "bin"});
  oslo({"merge", ckpt(), in("merged")});
  on_grid({"tensor 2", 2}, 2, [&](ParallelModel& parallel, Gpt2& model) {
    for (const char* name : {"three", "bin", "merged"}) {
      torch::optim::AdamW optimizer(model->parameters());
      parallel.from_parallelized(in(name), LoadOptions().optimizer(&optimizer));
      parallel.save_parallelized(in("by ranks"),
                                 SaveOptions().merge_checkpoints(true).optimizer(&optimizer));
      for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
        EXPECT_FALSE(contents(in("merged/") + file).empty());
        EXPECT_EQ(contents(in("merged/") + file), contents(in("by ranks/") + file)) << name;
      }
    }
  });
  EXPECT_THAT(oslo({"inspect", in("three")}), HasSubstr("with the state of AdamW"));
}

TEST_F(FolderCommands, ConvertChangesTheFormatAlone) {
  oslo({"convert", ckpt(), in("bin"), "--format", "bin"});
  oslo({"convert", in("bin"), in("back"), "--format", "safetensors"});
  EXPECT_EQ(names_in(in("back")), names_in(ckpt()));
  for (const std::string& name : names_in(ckpt())) {
    EXPECT_EQ(contents(in("back/") + name), contents(ckpt() + "/" + name)) << name;
  }
  expect_loads(in("bin"));
}

TEST_F(FolderCommands, ConvertWritesWhatSavePretrainedWrites) {
  oslo({"convert", ckpt(), in("for_python"), "--format", "huggingface"});
  save_pretrained(make_gpt2(1), in("saved"), PretrainedOptions().config(small_config().to_json()));
  EXPECT_EQ(names_in(in("for_python")), (Names{"config.json", "model.safetensors"}));
  for (const std::string& name : names_in(in("saved"))) {
    EXPECT_EQ(contents(in("for_python/") + name), contents(in("saved/") + name)) << name;
  }
  fs::remove(ckpt() + "/config.json");
  EXPECT_THAT(oslo({"convert", ckpt(), in("unknown"), "--format", "huggingface"}, 1),
              HasSubstr("config.json"));
  EXPECT_FALSE(fs::exists(in("unknown")));
}

TEST_F(FolderCommands, VerifyReadsEveryByte) {
  EXPECT_THAT(oslo({"verify", ckpt()}),
              AllOf(HasSubstr("28 tensors of"), HasSubstr("the hashes of 7 files fit")));
  oslo({"convert", ckpt(), in("for_python"), "--format", "huggingface"});
  EXPECT_THAT(oslo({"verify", in("for_python")}), HasSubstr("28 tensors"));
  const std::string file = ckpt() + "/pytorch_model_tp_1_pp_1.safetensors";
  const std::string good = contents(file);
  for (const size_t at : {size_t{9}, good.size() / 2, good.size() - 1}) {
    std::string flipped = good;
    flipped[at] ^= 1;
    write_contents(file, flipped);
    EXPECT_THAT(oslo({"verify", ckpt()}, 1), HasSubstr("pytorch_model_tp_1_pp_1.safetensors is "
                                                       "damaged"));
    // Nothing is made of what is damaged.
    for (const Words& words :
         {Words{"merge", ckpt(), in("out")}, Words{"convert", ckpt(), in("out"), "--format", "bin"},
          Words{"reshard", ckpt(), in("out"), "--set", "tensor_parallel_size=3"}}) {
      EXPECT_THAT(oslo(words, 1), HasSubstr("is damaged"));
      EXPECT_FALSE(fs::exists(in("out")));
    }
  }
  fs::remove(file);
  EXPECT_THAT(oslo({"verify", ckpt()}, 1), HasSubstr("lacks its file"));
}

TEST_F(FolderCommands, InspectSaysWhatIsThere) {
  EXPECT_THAT(
      oslo({"inspect", ckpt()}),
      AllOf(HasSubstr("a parallel checkpoint of tensor_parallel_size 2, pipeline_parallel_size 2; "
                      "28 tensors"),
            HasSubstr("  pytorch_model_tp_1_pp_0.safetensors "),
            HasSubstr("[53, 20] Float  dim 0: part 0 of 27+26\n"),
            HasSubstr("  lm_head.weight  transformer.wte.weight\n")));
  oslo({"merge", ckpt(), in("merged")});
  EXPECT_THAT(oslo({"inspect", in("merged")}),
              AllOf(HasSubstr("a merged checkpoint"), HasSubstr("[53, 20] Float  whole")));
  EXPECT_THAT(oslo({"inspect", in("merged/model.safetensors")}), HasSubstr("[53, 20] Float"));
  oslo({"convert", ckpt(), in("for_python"), "--format", "huggingface"});
  EXPECT_THAT(oslo({"inspect", in("for_python")}),
              AllOf(HasSubstr("a folder of Hugging Face's, gpt2"), HasSubstr("[20, 60] Float")));
}

TEST_F(FolderCommands, OfASeriesTheLatestIsReadAndStays) {
  fs::create_directory(in("run"));
  fs::rename(ckpt(), in("run/step-000007"));
  for (const char* command : {"merge", "convert"}) {
    Words words = {command, in("run"), in("run/step-000007")};
    if (words[0] == "convert") words.insert(words.end(), {"--format", "huggingface"});
    EXPECT_THAT(oslo(words, 1), HasSubstr("is the folder that is read"));
  }
  EXPECT_EQ(names_in(in("run")), Names{"step-000007"});
  oslo({"merge", in("run"), in("run/merged")});  // beside it
  expect_loads(in("run/merged"));
  oslo({"merge", in("run/merged/model.safetensors"), in("run/merged/alone"), "--format", "bin"});
  expect_loads(in("run/merged/alone"));
}

TEST_F(FolderCommands, RefusalsLeaveNothingBehind) {
  const Names before = names_in(in("."));
  EXPECT_THAT(oslo({"merge", in("missing"), in("out")}, 1), HasSubstr("there is no checkpoint"));
  EXPECT_THAT(oslo({"merge", ckpt(), ckpt()}, 1), HasSubstr("is the folder that is read"));
  EXPECT_THAT(oslo({"merge", ckpt(), ckpt() + "/"}, 1), HasSubstr("is the folder that is read"));
  EXPECT_THAT(oslo({"merge", ckpt(), ckpt() + "/merged"}, 1),
              AllOf(HasSubstr("ckpt/merged lies in "), HasSubstr("write beside it")));
  const std::string part = ckpt() + "/pytorch_model_tp_0_pp_0.safetensors";
  EXPECT_THAT(oslo({"merge", part, ckpt()}, 1), HasSubstr("is the folder that is read"));
  EXPECT_THAT(oslo({"merge", ckpt()}, 2), HasSubstr("out"));
  EXPECT_THAT(oslo({"convert", ckpt(), in("out")}, 2), HasSubstr("--format"));
  EXPECT_THAT(oslo({"convert", ckpt(), in("out"), "--format", "pickle"}, 2), HasSubstr("pickle"));
  EXPECT_THAT(oslo({"reshard", ckpt(), in("out")}, 2), HasSubstr("--set"));
  EXPECT_THAT(oslo({"reshard", ckpt(), in("out"), "--set", "tensor_parallel_sizes=2"}, 2),
              HasSubstr("tensor_parallel_size"));
  EXPECT_THAT(oslo({"reshard", ckpt(), in("out"), "--set", "tensor_parallel_size=0"}, 2),
              HasSubstr("tensor_parallel_size"));
  EXPECT_THAT(oslo({"inspect", in("missing")}, 1), HasSubstr("there is no checkpoint"));
  EXPECT_THAT(oslo({"merge", "--help"}), HasSubstr("oslo merge parallel_ckpt merged_ckpt"));
  EXPECT_EQ(names_in(in(".")), before);
  expect_loads(ckpt());
  // What was there before is replaced as a whole, unless no save wrote it.
  oslo({"merge", ckpt(), in("merged")});
  oslo({"merge", ckpt(), in("merged"), "--format", "bin"});
  EXPECT_EQ(names_in(in("merged")).count("model.safetensors"), 0u);
  write_contents(in("merged/notes.txt"), "mine");
  EXPECT_THAT(oslo({"merge", ckpt(), in("merged")}, 1), HasSubstr("which no save wrote"));
  EXPECT_EQ(contents(in("merged/notes.txt")), "mine");
}

}  // namespace
}  // namespace oslo::folder_commands_test
