#include "mpu/launch/launch_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "mpu/base/error.h"
#include "mpu/launch/job_store.h"

namespace oslo {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

LaunchEnvironment detect(const Variables& variables) {
  return LaunchEnvironment::detect([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

std::string refusal(const Variables& variables) {
  try {
    const LaunchEnvironment seen = detect(variables);
    return "accepted as rank " + std::to_string(seen.rank) + " of " + std::to_string(seen.size);
  } catch (const Error& error) {
    return error.what();
  }
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, text] : more) variables[name] = text;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

const Variables kPlain = {{"RANK", "5"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"MASTER_ADDR", "node7"},
                          {"MASTER_PORT", "29500"}};
const Variables kTorchrun = with(kPlain, {{"TORCHELASTIC_RUN_ID", "none"},
                                          {"TORCHELASTIC_RESTART_COUNT", "2"},
                                          {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
// What mpirun of Open MPI 4.1 gives to rank 1 of 2.
const Variables kOpenMpi = {
    {"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "2"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
    {"PMIX_NAMESPACE", "2079719425"},    {"OMPI_MCA_ess_base_jobid", "2079719425"}};
const Variables kSlurm = {{"SLURM_JOB_ID", "4711"},
                          {"SLURM_STEP_ID", "0"},
                          {"SLURM_PROCID", "9"},
                          {"SLURM_NTASKS", "10"},
                          {"SLURM_STEP_NUM_TASKS", "10"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_NODEID", "2"},
                          {"SLURM_STEP_TASKS_PER_NODE", "4(x2),2"},
                          {"SLURM_STEP_NODELIST", "gpu[07,10-11]"},
                          {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1"}};

TEST(LaunchEnvironment, AloneWithoutAnyLauncher) {
  const LaunchEnvironment seen = detect({{"LOCAL_RANK", "3"}, {"MASTER_ADDR", "node7"}});
  EXPECT_EQ(seen.source, "alone");
  EXPECT_EQ(seen.rank, 0);
  EXPECT_EQ(seen.size, 1);
  EXPECT_EQ(seen.local_rank, 0);
  EXPECT_EQ(seen.local_size, 1);
  EXPECT_EQ(seen.master_port, 0);
}

TEST(LaunchEnvironment, AnEmptyVariableIsAnAbsentOne) {
  EXPECT_EQ(detect({{"RANK", ""}, {"WORLD_SIZE", ""}}).source, "alone");
}

TEST(LaunchEnvironment, Torchrun) {
  const LaunchEnvironment seen = detect(kTorchrun);
  EXPECT_EQ(seen.source, "torchrun");
  EXPECT_EQ(seen.rank, 5);
  EXPECT_EQ(seen.size, 8);
  EXPECT_EQ(seen.local_rank, 1);
  EXPECT_EQ(seen.local_size, 4);
  EXPECT_EQ(seen.master_address, "node7");
  EXPECT_EQ(seen.master_port, 29500);
  EXPECT_TRUE(seen.store_is_hosted_elsewhere);
  EXPECT_EQ(seen.restart_prefix, "/restart_2");
}

TEST(LaunchEnvironment, TorchrunMayLeaveTheStoreToRankZero) {
  const auto seen = detect(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}}));
  EXPECT_FALSE(seen.store_is_hosted_elsewhere);
}

TEST(LaunchEnvironment, OsloRun) {
  const LaunchEnvironment seen = detect(with(kPlain, {{"OSLO_LAUNCHER", "1"}}));
  EXPECT_EQ(seen.source, "oslo run");
  EXPECT_EQ(seen.rank, 5);
  EXPECT_FALSE(seen.store_is_hosted_elsewhere);
  EXPECT_EQ(seen.restart_prefix, "");
}

TEST(LaunchEnvironment, OsloRunInsideOtherLaunchersWins) {
  const Variables inside = with(with(kPlain, {{"OSLO_LAUNCHER", "1"}}), with(kOpenMpi, kSlurm));
  EXPECT_EQ(detect(inside).source, "oslo run");
  EXPECT_EQ(detect(inside).size, 8);
}

TEST(LaunchEnvironment, PlainVariablesWithoutLocalOnes) {
  Variables plain = without(without(kPlain, "LOCAL_RANK"), "LOCAL_WORLD_SIZE");
  EXPECT_EQ(detect(plain).source, "environment variables");
  EXPECT_EQ(detect(plain).local_rank, 0);
  EXPECT_EQ(detect(plain).local_size, 1);
  plain["MASTER_ADDR"] = "127.0.0.1";
  EXPECT_EQ(detect(plain).local_rank, 5);
  EXPECT_EQ(detect(plain).local_size, 8);
}

// What OneFlow's launcher, and torch's before 1.9, give to rank 1 of 4.
const Variables kOneFlow = {{"MASTER_ADDR", "127.0.0.1"},
                            {"MASTER_PORT", "29500"},
                            {"WORLD_SIZE", "4"},
                            {"RANK", "1"},
                            {"LOCAL_RANK", "1"}};

TEST(LaunchEnvironment, OneFlowGivesLocalRankAlone) {
  const LaunchEnvironment seen = detect(kOneFlow);
  EXPECT_EQ(seen.source, "environment variables");
  EXPECT_EQ(seen.rank, 1);
  EXPECT_EQ(seen.local_rank, 1);
  EXPECT_EQ(seen.local_size, 4);
  const Variables spread = with(kOneFlow, {{"LOCAL_RANK", "0"}});
  EXPECT_THAT(refusal(spread),
              AllOf(HasSubstr("LOCAL_RANK=0 is not RANK=1"), HasSubstr("MASTER_ADDR=127.0.0.1"),
                    HasSubstr("LOCAL_WORLD_SIZE to the number")));
  EXPECT_THAT(refusal(with(kOneFlow, {{"LOCAL_RANK", "4"}})), HasSubstr("must lie in 0..3"));
  EXPECT_THAT(refusal(with(kOneFlow, {{"MASTER_ADDR", "node7"}})),
              HasSubstr("LOCAL_WORLD_SIZE is not; set LOCAL_WORLD_SIZE"));
}

/// What `deepspeed --num_gpus=4` gives, in 0.14.
TEST(LaunchEnvironment, DeepSpeedSaysLocalSize) {
  const Variables deepspeed =
      with(kOneFlow, {{"LOCAL_SIZE", "4"}, {"CROSS_RANK", "0"}, {"CROSS_SIZE", "1"}});
  EXPECT_EQ(detect(deepspeed).local_rank, 1);
  EXPECT_EQ(detect(deepspeed).local_size, 4);
  const Variables second_host =
      with(deepspeed,
           {{"MASTER_ADDR", "node7"}, {"WORLD_SIZE", "6"}, {"RANK", "5"}, {"LOCAL_SIZE", "2"}});
  EXPECT_EQ(detect(second_host).local_rank, 1);
  EXPECT_EQ(detect(second_host).local_size, 2);
  EXPECT_THAT(refusal(with(deepspeed, {{"LOCAL_SIZE", "1"}})), HasSubstr("because LOCAL_SIZE=1"));
}

TEST(LaunchEnvironment, OpenMpiOnOneHostNeedsNoAddressAndDerivesThePort) {
  const LaunchEnvironment seen = detect(kOpenMpi);
  EXPECT_EQ(seen.source, "Open MPI");
  EXPECT_EQ(seen.rank, 1);
  EXPECT_EQ(seen.size, 2);
  EXPECT_EQ(seen.local_rank, 1);
  EXPECT_EQ(seen.local_size, 2);
  EXPECT_EQ(seen.master_address, "127.0.0.1");
  EXPECT_GE(seen.master_port, 20000);
  EXPECT_LT(seen.master_port, 30000);
  const auto peer = with(kOpenMpi, {{"OMPI_COMM_WORLD_RANK", "0"}});
  EXPECT_EQ(detect(peer).master_port, seen.master_port);
  const auto other_job = with(kOpenMpi, {{"PMIX_NAMESPACE", "2079719426"}});
  EXPECT_NE(detect(other_job).master_port, seen.master_port);
  EXPECT_EQ(detect(with(kOpenMpi, {{"MASTER_PORT", "1234"}})).master_port, 1234);
}

TEST(LaunchEnvironment, OpenMpiOverSeveralHostsNeedsAnAddress) {
  const auto spread = with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "4"}});
  EXPECT_THAT(refusal(spread), AllOf(HasSubstr("MASTER_ADDR is not set (Open MPI)"),
                                     HasSubstr("only 2 of the 4 ranks")));
  EXPECT_EQ(detect(with(spread, {{"MASTER_ADDR", "node1"}})).master_address, "node1");
}

TEST(LaunchEnvironment, SlurmStep) {
  const LaunchEnvironment seen = detect(kSlurm);
  EXPECT_EQ(seen.source, "Slurm");
  EXPECT_EQ(seen.rank, 9);
  EXPECT_EQ(seen.size, 10);
  EXPECT_EQ(seen.local_rank, 1);
  EXPECT_EQ(seen.local_size, 2);  // 4(x2),2: the third host has two
  EXPECT_EQ(seen.master_address, "gpu07");
  EXPECT_EQ(detect(with(kSlurm, {{"SLURM_NODEID", "1"}})).local_size, 4);
  EXPECT_NE(detect(with(kSlurm, {{"SLURM_STEP_ID", "1"}})).master_port, seen.master_port);
}

TEST(LaunchEnvironment, SlurmHostLists) {
  const auto host = [](const std::string& list) {
    return detect(with(kSlurm, {{"SLURM_STEP_NODELIST", list}})).master_address;
  };
  EXPECT_EQ(host("gpu-1,gpu-2"), "gpu-1");
  EXPECT_EQ(host("n[001-004]"), "n001");
  EXPECT_EQ(host("rack[2-3]n[5,9].cluster,x"), "rack2n5.cluster");
  EXPECT_EQ(detect(without(kSlurm, "SLURM_STEP_NODELIST")).master_address, "10.0.0.1");
}

TEST(LaunchEnvironment, SlurmOnOneHostMeetsOnLoopback) {
  const auto here = with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "10"}, {"SLURM_NODEID", "0"}});
  EXPECT_EQ(detect(here).master_address, "127.0.0.1");
}

TEST(LaunchEnvironment, SlurmShellsAndBatchScriptsAreAlone) {
  EXPECT_EQ(detect(without(kSlurm, "SLURM_STEP_ID")).source, "alone");
  // An interactive step: one task of its own inside an allocation of ten.
  EXPECT_EQ(detect(with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "1"}})).source, "alone");
}

TEST(LaunchEnvironment, PartialSettingsAreRefused) {
  EXPECT_THAT(refusal(without(kPlain, "WORLD_SIZE")),
              HasSubstr("RANK=5 is set (environment variables) but WORLD_SIZE is not"));
  EXPECT_THAT(refusal(without(kPlain, "RANK")),
              HasSubstr("WORLD_SIZE=8 is set (environment variables) but RANK is not"));
  EXPECT_THAT(refusal(without(kPlain, "LOCAL_RANK")), HasSubstr("LOCAL_RANK is not"));
  EXPECT_THAT(refusal(without(kTorchrun, "MASTER_PORT")),
              HasSubstr("MASTER_PORT is not set (torchrun, 8 ranks)"));
  EXPECT_THAT(refusal(without(kPlain, "MASTER_ADDR")), HasSubstr("MASTER_ADDR is not set"));
  EXPECT_THAT(refusal(without(kOpenMpi, "OMPI_COMM_WORLD_SIZE")),
              HasSubstr("OMPI_COMM_WORLD_SIZE is not"));
}

TEST(LaunchEnvironment, ValuesThatCannotBeAreRefused) {
  const auto refused = [](const std::string& name, const std::string& text) {
    return refusal(with(kTorchrun, {{name, text}}));
  };
  EXPECT_THAT(refused("RANK", "five"), HasSubstr("RANK=five (torchrun) is not a whole number"));
  EXPECT_THAT(refused("RANK", "5x"), HasSubstr("RANK=5x (torchrun) is not a whole number"));
  EXPECT_THAT(refused("RANK", "8"),
              HasSubstr("RANK=8 (torchrun) must lie in 0..7 because WORLD_SIZE=8"));
  EXPECT_THAT(refused("RANK", "-1"), HasSubstr("RANK=-1 (torchrun) must lie in 0..7"));
  EXPECT_THAT(refused("WORLD_SIZE", "0"), HasSubstr("WORLD_SIZE=0 (torchrun) must lie in 1.."));
  EXPECT_THAT(refused("LOCAL_RANK", "4"), HasSubstr("because LOCAL_WORLD_SIZE=4"));
  EXPECT_THAT(refused("LOCAL_WORLD_SIZE", "9"), HasSubstr("LOCAL_WORLD_SIZE=9 (torchrun)"));
  EXPECT_THAT(refused("MASTER_PORT", "0"), HasSubstr("MASTER_PORT=0 (torchrun) must lie in"));
  EXPECT_THAT(refused("MASTER_PORT", "65536"), HasSubstr("must lie in 1..65535"));
  EXPECT_THAT(refused("WORLD_SIZE", "99999999999"), HasSubstr("is not a whole number"));
}

TEST(LaunchEnvironment, LeftoverRankUnderAnotherLauncherIsRefused) {
  const Variables leftover = {{"RANK", "0"}, {"WORLD_SIZE", "1"}};
  EXPECT_THAT(refusal(with(kOpenMpi, leftover)),
              HasSubstr("RANK=0 and WORLD_SIZE=1 (environment variables) contradict rank 1 of 2 "
                        "from Open MPI"));
  EXPECT_THAT(refusal(with(kSlurm, leftover)), HasSubstr("contradict rank 9 of 10 from Slurm"));
  const Variables same = {
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "5000"}};
  EXPECT_EQ(detect(with(kOpenMpi, same)).rank, 1);
}

TEST(LaunchEnvironment, AnExportedWorldSizeDoesNotShadowSlurm) {
  EXPECT_EQ(detect(with(kSlurm, {{"WORLD_SIZE", "10"}})).source, "Slurm");
}

/// The store listens on the loopback alone then, whatever the address that ranks are told.
TEST(LaunchEnvironment, AJobOfAsManyRanksAsAreHereIsOnOneHost) {
  EXPECT_FALSE(is_on_one_host(detect(kPlain)));
  EXPECT_TRUE(is_on_one_host(detect(with(kPlain, {{"LOCAL_WORLD_SIZE", "8"}}))));
  EXPECT_FALSE(is_on_one_host(detect(with(kPlain, {{"LOCAL_WORLD_SIZE", "7"}}))));
  EXPECT_TRUE(is_on_one_host(detect(with(kPlain, {{"MASTER_ADDR", "127.0.0.1"}}))));
}

TEST(LaunchEnvironment, ReadsTheProcessEnvironment) {
  for (const auto& [name, text] : kTorchrun) setenv(name.c_str(), text.c_str(), 1);
  const LaunchEnvironment seen = LaunchEnvironment::detect();
  for (const auto& [name, text] : kTorchrun) unsetenv(name.c_str());
  EXPECT_EQ(seen.source, "torchrun");
  EXPECT_EQ(seen.rank, 5);
}

}  // namespace
}  // namespace oslo
