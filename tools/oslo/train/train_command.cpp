#include "tools/oslo/train/train_command.h"

#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <vector>

#include "mpu/base/environment.h"
#include "tools/oslo/base/library_entry.h"
#include "tools/oslo/run/rank_group.h"
#include "tools/oslo/run/rank_options.h"

namespace oslo::tool {
namespace {

constexpr int kMisuse = 2;

constexpr const char* kExamples = R"(Examples:
  oslo train configs/bert_large_pretrain.json 8 train.dist.tensor_parallel_size=4
  oslo train -n 8 configs/bert_large_pretrain.json train.dist.pipeline_parallel_size=4
  oslo train -n 4 configs/gpt2.json 'train.dist.custom_pipeline_stage_id=[0]*6 + [1]*6'
  oslo train -n 4 configs/gpt2.json --resume       go on from the newest checkpoint
  oslo train -n 4 net.json --model-library ./libnet.so
  oslo run -n 4 -- oslo train configs/gpt2.json    the same; also below torchrun, mpirun, srun
  oslo plan -n 8 -- oslo train configs/gpt2.json   how it would be cut, without training

CONFIG is JSON with LiBai's names; "base" names files that it inherits from. The model comes from
the tutorials' models (bert, gpt2, llama, t5, vit) or a library of your own. Checkpoints, losses
and the resolved config are written to train.output_dir.
)";

struct TrainRequest {
  /// Of no ranks where this process is one.
  std::shared_ptr<RunOptions> run = std::make_shared<RunOptions>();
  std::vector<std::string> words;
  std::string library;
  bool resume = false, eval_only = false;
};

class TrainFormatter : public CLI::Formatter {
 public:
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: oslo train CONFIG.json [N] [path=value ...] [options]\n"
           "       oslo train -n N CONFIG.json [path=value ...] [options]\n";
  }
};

bool is_number(const std::string& word) {
  return !word.empty() && word.size() < 8 &&
         word.find_first_not_of("0123456789") == std::string::npos;
}

/// Takes LiBai's number of ranks, behind the config, out of the words. False where it is wrong.
bool take_ranks(TrainRequest& request) {
  auto& words = request.words;
  const auto number = std::find_if(words.begin() + 1, words.end(), is_number);
  if (number == words.end()) return true;
  const int ranks = std::stoi(*number);
  words.erase(number);
  if (ranks >= 1 && ranks <= 65536 && (request.run->ranks == 0 || request.run->ranks == ranks)) {
    request.run->ranks = ranks;
    return true;
  }
  std::cerr << "oslo train: " << ranks << " ranks behind the config"
            << (request.run->ranks > 0
                    ? ", and -n " + std::to_string(request.run->ranks) + ": keep one of the two\n"
                    : ": give a number from 1 to 65536\n");
  return false;
}

bool check_words(const TrainRequest& request) {
  for (size_t i = 1; i < request.words.size(); ++i) {
    const std::string& word = request.words[i];
    if (word.find('=') != std::string::npos && word[0] != '=') continue;
    std::cerr << "oslo train: '" << word
              << "' is no override, which is path=value; one with blanks needs quotes: "
                 "'train.dist.custom_pipeline_stage_id=[0]*6 + [1]*6'\n";
    return false;
  }
  return true;
}

std::string json_of(const TrainRequest& request, int check_for_ranks) {
  nlohmann::json json;
  json["config"] = request.words[0];
  json["overrides"] = std::vector<std::string>(request.words.begin() + 1, request.words.end());
  json["model_library"] = nullptr;
  if (!request.library.empty()) json["model_library"] = request.library;
  json["resume"] = request.resume;
  json["eval_only"] = request.eval_only;
  json["check_for_ranks"] = check_for_ranks;
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

int call_library(const TrainRequest& request, int check_for_ranks) {
  int exit_code = 0;
  void* const entry = library_entry("train", "oslo_train", exit_code);
  if (entry == nullptr) return exit_code;
  return reinterpret_cast<int (*)(const char*)>(entry)(json_of(request, check_for_ranks).c_str());
}

/// Ranks started by ranks would be jobs of their own, all in one output folder.
bool starts_below_a_launcher(const TrainRequest& request) {
  const char* const size = std::getenv("WORLD_SIZE");
  const bool rank =
      std::getenv(row_of(Variable::launcher).name) != nullptr || (size && std::atoi(size) > 1);
  if (request.run->ranks == 0 || !rank) return false;
  std::cerr << "oslo train: " << request.run->ranks
            << " ranks are asked for below a launcher, which has started the ranks: leave the "
               "number out\n";
  return true;
}

/// In a process of its own, so that this one does not hold the library while ranks run. A mistake
/// is told once, not by every rank.
int check(const TrainRequest& request) {
  std::cout.flush();
  const pid_t child = fork();
  if (child < 0) return 1;
  if (child == 0) {
    const int exit_code = call_library(request, request.run->ranks);
    std::cerr.flush();
    _exit(exit_code);
  }
  int status = 0;
  if (waitpid(child, &status, 0) != child) return 1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// Each rank is this command without a number of ranks.
std::vector<std::string> rank_words(const TrainRequest& request) {
  std::vector<std::string> words = {"oslo", "train"};
  if (request.resume) words.emplace_back("--resume");
  if (request.eval_only) words.emplace_back("--eval-only");
  if (!request.library.empty()) {
    words.insert(words.end(), {"--model-library", request.library});
  }
  words.emplace_back("--");
  words.insert(words.end(), request.words.begin(), request.words.end());
  return words;
}

int start_ranks(const TrainRequest& request) {
  RunOptions& options = *request.run;
  if (!find_gpus(options, "oslo train")) return kMisuse;
  std::error_code failed;
  options.path = std::filesystem::read_symlink("/proc/self/exe", failed).string();
  if (failed) {
    std::cerr << "oslo train: cannot find this program: " << failed.message() << "\n";
    return 126;
  }
  return run_ranks(options, rank_words(request));
}

int train(TrainRequest request) {
  if (!take_ranks(request) || !check_words(request)) return kMisuse;
  if (starts_below_a_launcher(request)) return kMisuse;
  if (request.run->ranks == 0) return call_library(request, /*check_for_ranks=*/0);
  const int wrong = check(request);
  return wrong == 0 ? start_ranks(request) : wrong;
}

}  // namespace

void add_train_command(CLI::App& app, Invocation& invocation) {
  CLI::App* const command =
      app.add_subcommand("train", "Trains the model of a config, over ranks in any grid.");
  const auto request = std::make_shared<TrainRequest>();
  command
      ->add_option("CONFIG", request->words,
                   "the config, a number of ranks as LiBai's train.sh takes it, and overrides")
      ->required()
      ->type_name("");
  command
      ->add_option("-n,--ranks", request->run->ranks,
                   "how many ranks to start here; without it this process is one, of a launcher or "
                   "alone")
      ->check(CLI::Range(1, 65536).description(""));
  command->add_flag("--resume", request->resume,
                    "go on from the newest checkpoint in train.output_dir");
  command->add_flag("--eval-only", request->eval_only,
                    "evaluate, with train.load_weight or --resume, and do not train");
  command
      ->add_option("--model-library", request->library,
                   "a shared library with OSLO_TRAINED_MODELS, in place of the tutorials'")
      ->type_name("FILE");
  add_rank_options(*command, request->run);
  command->formatter(std::make_shared<TrainFormatter>());
  command->get_formatter()->column_width(26);
  command->footer(kExamples);
  command->callback([&invocation, request] { invocation.exit_code = train(*request); });
}

}  // namespace oslo::tool
