#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <torch/nn/module.h>
#include <torch/optim/adamw.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "checkpoint/folders/folder_plan.h"
#include "checkpoint/folders/rewrite_folder.h"
#include "checkpoint/load/load_state.h"
#include "checkpoint/load/parallel_checkpoint.h"
#include "parallelizers/placement/carrier/mark.h"
#include "tests/support/temporary_directory.h"

// Acceptance K5: a job that is killed while it saves. The job is a process with its ranks as
// threads; this process only forks, so that no child inherits half a thread pool.
namespace oslo {
namespace {

namespace fs = std::filesystem;
using ::oslo::test::TemporaryDirectory;

constexpr int kTensors = 6;

/// Parameters and an optimizer's states that all hold the generation, some of them cut: a mix of
/// two saves shows.
struct Job {
  Job(int generation, const MPU& mpu);
  std::shared_ptr<torch::nn::Module> model = std::make_shared<torch::nn::Module>();
  std::optional<torch::optim::AdamW> optimizer;
};

Job::Job(int generation, const MPU& mpu) {
  for (int i = 0; i < kTensors; ++i) {
    const std::string name = c10::str("weight", i);
    const at::Tensor& weight = model->register_parameter(
        name, at::full({7, 5}, static_cast<double>(generation)), /*requires_grad=*/false);
    if (i % 2 == 0) {
      mark_parameter(weight,
                     std::make_shared<const Layout>(
                         make_layout(mpu.tensor_mesh(), {Placement::shard(0)}, weight.sizes())),
                     name);
    }
  }
  optimizer.emplace(model->parameters());
  for (const at::Tensor& weight : model->parameters()) {
    auto state = std::make_unique<torch::optim::AdamWParamState>();
    state->step(generation);
    state->exp_avg(weight.detach().clone());
    optimizer->state()[weight.unsafeGetTensorImpl()] = std::move(state);
  }
}

/// Everything that this rank holds of a job.
std::set<float> values_of(Job& job) {
  std::set<float> seen;
  for (const at::Tensor& weight : job.model->parameters()) {
    auto& state = static_cast<torch::optim::AdamWParamState&>(
        *job.optimizer->state().at(weight.unsafeGetTensorImpl()));
    seen.insert(static_cast<float>(state.step()));
    for (const at::Tensor& tensor : {weight, state.exp_avg()}) {
      const at::Tensor values = plain_values(tensor);
      for (int64_t i = 0; i < values.numel(); ++i) seen.insert(values.const_data_ptr<float>()[i]);
    }
  }
  return seen;
}

void as_job(const std::function<void(const MPU&)>& body) {
  run_as_threads(4, [&](World world) { body(MPU(world, MpuOptions().tensor_parallel_size(2))); });
}

/// Runs `body` in a child and returns its process id. The child ends with 1 when it throws.
pid_t in_child(const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  at::set_num_threads(1);
  try {
    body();
    ::_exit(0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    ::_exit(1);
  }
}

bool succeeds(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/// The one generation that a new job finds in all tensors of all ranks.
std::optional<int> load(const fs::path& target) {
  int answer[2];
  if (::pipe(answer) != 0) return std::nullopt;
  const pid_t child = in_child([&] {
    as_job([&](const MPU& mpu) {
      Job job(-1, mpu);
      load_parallelized(*job.model, mpu, target, LoadOptions().optimizer(&*job.optimizer));
      const std::set<float> seen = values_of(job);
      const int found = seen.size() == 1 ? static_cast<int>(*seen.begin()) : -1;
      if (::write(answer[1], &found, sizeof found) != sizeof found) throw Error("no pipe");
    });
  });
  ::close(answer[1]);
  std::set<int> found;
  for (int word = 0; ::read(answer[0], &word, sizeof word) == sizeof word;) found.insert(word);
  ::close(answer[0]);
  if (!succeeds(child) || found.size() != 1 || *found.begin() < 0) return std::nullopt;
  return *found.begin();
}

/// How a job saves.
struct Way {
  const char* name;
  bool merged = false, in_series = false, asynchronous = false;
};
constexpr int kKept = 2;

void save(const Way& way, int generation, const MPU& mpu, const fs::path& target,
          SaveMemory& memory) {
  Job job(generation, mpu);
  SaveOptions options = SaveOptions().merge_checkpoints(way.merged).optimizer(&*job.optimizer);
  if (way.in_series) options.step(generation).keep_last(kKept);
  if (way.asynchronous) {
    save_async(*job.model, mpu, target, options, memory)->wait();
  } else {
    save_parallelized(*job.model, mpu, target, options);
  }
}

/// OSLO_TEST_KILLS, else few.
int kills() {
  constexpr int kFew = 8;
  const char* asked = std::getenv("OSLO_TEST_KILLS");
  return asked == nullptr ? kFew : std::atoi(asked);
}

class KilledSave : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, KilledSave,
                         ::testing::Values(Way{"parts"}, Way{"merged", true},
                                           Way{"series", false, true},
                                           Way{"asynchronous", false, false, true},
                                           Way{"all", true, true, true}),
                         [](const auto& tested) { return tested.param.name; });

// A job saves on and on and says so after every save; it is killed after some of its words,
// wherever its ranks are by then. The last save that it spoke of, or a later one, must load.
TEST_P(KilledSave, TheLastFinishedCheckpointLoads) {
  const TemporaryDirectory folder;
  const fs::path target = folder / "ckpt";
  std::minstd_rand random(23);
  int last = 0;
  for (int round = 0; round < kills(); ++round) {
    int words[2];
    ASSERT_EQ(::pipe(words), 0);
    const pid_t child = in_child([&] {
      as_job([&](const MPU& mpu) {
        SaveMemory memory;
        for (int generation = last + 1;; ++generation) {
          save(GetParam(), generation, mpu, target, memory);
          if (mpu.world().rank() == 0 &&
              ::write(words[1], &generation, sizeof generation) != sizeof generation) {
            throw Error("no pipe");
          }
        }
      });
    });
    ::close(words[1]);
    for (unsigned left = random() % 4 + 1; left > 0; --left) {
      ASSERT_EQ(::read(words[0], &last, sizeof last), static_cast<ssize_t>(sizeof last));
    }
    // A little work, never the same, so that the kill does not always meet the same line.
    for (unsigned calls = random() % 60000; calls > 0; --calls) ::getppid();
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status));
    ::close(words[0]);
    const std::optional<int> generation = load(target);
    ASSERT_TRUE(generation.has_value()) << "round " << round;
    EXPECT_GE(*generation, last);
    last = *generation;
  }
  // The next save clears away what the killed ones left.
  EXPECT_TRUE(succeeds(in_child([&] {
    as_job([&](const MPU& mpu) {
      SaveMemory memory;
      save(GetParam(), last + 1, mpu, target, memory);
    });
  })));
  EXPECT_EQ(load(target), last + 1);
  const auto entries = [](const fs::path& path) {
    return std::distance(fs::directory_iterator(path), fs::directory_iterator());
  };
  EXPECT_EQ(entries(folder.path()), 1);
  if (GetParam().in_series) {
    EXPECT_EQ(entries(target), kKept + 1);
  }
}

/// OSLO_TEST_LOADS of each way, else few.
int loads() {
  constexpr int kFew = 25;
  const char* asked = std::getenv("OSLO_TEST_LOADS");
  return asked == nullptr ? kFew : std::atoi(asked);
}

class LoadBesideSaves : public ::testing::TestWithParam<Way> {};
INSTANTIATE_TEST_SUITE_P(Ways, LoadBesideSaves,
                         ::testing::Values(Way{"parts"}, Way{"merged", true},
                                           Way{"series", false, true}, Way{"all", true, true}),
                         [](const auto& tested) { return tested.param.name; });

/// All that a job of four ranks finds in the folder: what it loads in turns, into the layout that
/// saved, in one process, and by a command.
void expect_one_save(const fs::path& target, int time, const fs::path& merged) {
  std::set<float> seen;
  std::mutex mutex;
  const auto add = [&](const std::set<float>& values) {
    const std::lock_guard<std::mutex> lock(mutex);
    seen.insert(values.begin(), values.end());
  };
  if (time % 3 == 0) {
    const MPU alone(World::alone());
    Job job(-1, alone);
    rewrite_folder(target, merged, [](const CheckpointIndex& index) { return plan_merged(index); });
    load_parallelized(*job.model, alone, merged, LoadOptions().optimizer(&*job.optimizer));
    add(values_of(job));
  } else {
    as_job([&](const MPU& mpu) {
      Job job(-1, mpu);
      load_parallelized(*job.model, mpu, target, LoadOptions().optimizer(&*job.optimizer));
      add(values_of(job));
    });
  }
  if (seen.size() == 1 && *seen.begin() > 0) return;
  std::string all;
  for (const float value : seen) all += c10::str(" ", value);
  throw Error("a load of several saves:" + all);
}

// A job saves into a folder without a pause; another one loads from it. No load holds two saves, on
// one rank or on two, and none is refused.
TEST_P(LoadBesideSaves, HoldsOneSaveAndIsNotRefused) {
  const TemporaryDirectory folder;
  const fs::path target = folder / "ckpt";
  int words[2];
  ASSERT_EQ(::pipe(words), 0);
  const pid_t saver = in_child([&] {
    as_job([&](const MPU& mpu) {
      SaveMemory memory;
      for (int generation = 1;; ++generation) {
        save(GetParam(), generation, mpu, target, memory);
        if (mpu.world().rank() == 0 && generation == 1) ::close(words[1]);
      }
    });
  });
  ::close(words[1]);
  int last = 0;
  ASSERT_EQ(::read(words[0], &last, sizeof last), 0);  // the first save is there
  ::close(words[0]);
  EXPECT_TRUE(succeeds(in_child([&] {
    for (int time = 0; time < loads(); ++time) {
      expect_one_save(target, time, folder / "merged");
    }
  })));
  EXPECT_EQ(::waitpid(saver, nullptr, WNOHANG), 0);  // it saved until now
  ::kill(saver, SIGKILL);
  ::waitpid(saver, nullptr, 0);
}

}  // namespace
}  // namespace oslo
