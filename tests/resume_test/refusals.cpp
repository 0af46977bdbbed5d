// What does not fit is refused by name, on every rank, and nothing has changed.
#include <torch/optim/lbfgs.h>

#include <functional>
#include <set>

#include "checkpoint/storage/hash.h"
#include "tests/resume_test/session.h"
#include "tests/support/errors_of.h"
#include "tests/support/files.h"

namespace oslo::resume_test {
namespace {

using torch::optim::OptimizerParamGroup;

constexpr Layout kLayout = {2, 2, 1};

class ResumeRefused : public ::testing::Test {
 protected:
  void save(const Session::Setting& setting = {}) {
    run_as_threads(kLayout.size(), [&](World world) {
      Session saved(world, kLayout, setting);
      saved.train(0, 2);
      saved.parallel->save_parallelized(target_, saved.to_save());
    });
  }

  /// The one message of a load that fails on every rank and changes nothing.
  std::string failed_load(const Session::Setting& setting,
                          const std::function<void(Session&)>& change = {}) {
    const std::vector<std::string> errors = test::errors_of(kLayout.size(), [&](World world) {
      Session other(world, kLayout, setting);
      if (change) change(other);
      const auto weights = other.weights();
      const auto rates = other.rates();
      const auto states = other.optimizer->state().size();
      try {
        other.parallel->from_parallelized(target_, other.to_load());
      } catch (const Error&) {
        expect_same_bits(other.weights(), weights);
        EXPECT_EQ(other.rates(), rates);
        EXPECT_EQ(other.optimizer->state().size(), states);
        throw;
      }
      ADD_FAILURE() << "the load succeeded";
    });
    EXPECT_EQ(std::set<std::string>(errors.begin(), errors.end()).size(), 1u);
    return errors.front();
  }

  /// Changes the index and gives it the checksum that belongs to it.
  void edit(const std::function<void(nlohmann::json&)>& change) {
    const std::string path = target_ + "/oslo_checkpoint.json";
    nlohmann::json json = nlohmann::json::parse(test::contents(path));
    json.erase("checksum");
    change(json);
    json["checksum"] = sha256(json.dump());
    test::write_contents(path, json.dump(1));
  }

  const TemporaryDirectory folder_;
  const std::string target_ = folder_ / "ckpt";
};

/// One group of all parameters, in place of two.
void join_groups(Session& session) {
  session.optimizer = std::make_unique<torch::optim::AdamW>(session.model->parameters());
}

TEST_F(ResumeRefused, AnotherOptimizer) {
  save();
  EXPECT_SAYS(failed_load({.kind = Kind::adam}), "has the state of AdamW, this optimizer is Adam");
  EXPECT_SAYS(failed_load({}, join_groups),
              "has an optimizer of 2 parameter groups, this one has 1");
  const std::string exchanged = failed_load({}, [](Session& session) {
    auto& groups = session.optimizer->param_groups();
    std::swap(groups[0].params(), groups[1].params());
  });
  EXPECT_SAYS(exchanged, "group 0 of the optimizer has 'frozen', in the checkpoint it has not");
  const std::string fewer = failed_load(
      {}, [](Session& session) { session.optimizer->param_groups()[1].params().pop_back(); });
  EXPECT_SAYS(fewer, "group 1 of the checkpoint's optimizer has 'down.bias'");
}

TEST_F(ResumeRefused, WhatTheFolderHasNot) {
  run_as_threads(kLayout.size(), [&](World world) {
    Session saved(world, kLayout, {});
    saved.parallel->save_parallelized(target_);
  });
  EXPECT_SAYS(failed_load({}), "has no optimizer; save it with SaveOptions().optimizer");
  run_as_threads(kLayout.size(), [&](World world) {
    Session saved(world, kLayout, {});
    saved.parallel->save_parallelized(target_, SaveOptions().optimizer(saved.optimizer.get()));
  });
  EXPECT_SAYS(failed_load({}), "has no scheduler; save it with SaveOptions().scheduler");
}

TEST_F(ResumeRefused, StatesThatDoNotFit) {
  save();
  const std::string index = test::contents(target_ + "/oslo_checkpoint.json");
  const auto expect = [&](const char* words, const std::function<void(nlohmann::json&)>& change) {
    edit(change);
    EXPECT_SAYS(failed_load({}), words);
    test::write_contents(target_ + "/oslo_checkpoint.json", index);
  };
  expect("has an optimizer state of 'gone', which no group", [](nlohmann::json& json) {
    json["optimizer"]["states"]["gone"] = json["optimizer"]["states"]["up.weight"];
  });
  expect("lacks 'optimizer/exp_avg/up.weight'",
         [](nlohmann::json& json) { json["tensors"].erase("optimizer/exp_avg/up.weight"); });
  expect("has no 'step'", [](nlohmann::json& json) {
    json["optimizer"]["states"]["up.weight"]["numbers"].erase("step");
  });
  expect("'step' is 1.5, no whole number", [](nlohmann::json& json) {
    json["optimizer"]["states"]["up.weight"]["numbers"]["step"] = 1.5;
  });
  expect("has no 'lr'",
         [](nlohmann::json& json) { json["optimizer"]["groups"][1]["options"].erase("lr"); });
  expect("'amsgrad' is 2, neither 0 nor 1",
         [](nlohmann::json& json) { json["optimizer"]["groups"][0]["options"]["amsgrad"] = 2; });
  expect("has no tensor 'optimizer/sum/up.weight'", [](nlohmann::json& json) {
    json["tensors"]["optimizer/sum/up.weight"] = json["tensors"]["optimizer/exp_avg/up.weight"];
    json["optimizer"]["states"]["up.weight"]["tensors"] = {"sum"};
  });
}

TEST_F(ResumeRefused, AnOptimizerThatCannotBeSaved) {
  const auto refused = [&](const std::function<void(Session&)>& change) {
    const auto errors = test::errors_of(kLayout.size(), [&](World world) {
      Session session(world, kLayout, {});
      change(session);
      session.parallel->save_parallelized(target_, session.to_save());
    });
    EXPECT_EQ(std::set<std::string>(errors.begin(), errors.end()).size(), 1u);
    EXPECT_FALSE(std::filesystem::exists(target_));
    return errors.front();
  };
  EXPECT_SAYS(refused([](Session& session) {
                session.optimizer =
                    std::make_unique<torch::optim::LBFGS>(session.model->parameters());
              }),
              "the state of LBFGS cannot be saved");
  EXPECT_SAYS(refused([](Session& session) {
                session.optimizer->add_param_group(
                    OptimizerParamGroup({torch::ones({4, 3}, torch::requires_grad())}));
              }),
              "group 2 of the optimizer has a tensor of shape [4, 3] that is no parameter");
  EXPECT_SAYS(refused([](Session& session) {
                if (session.parallel->mpu().world().rank() == 3) {
                  session.optimizer->param_groups()[1].options().set_lr(0.5);
                }
              }),
              "the optimizer differs between ranks: rank 0 has");
  EXPECT_SAYS(refused([](Session& session) {
                session.train(0, 1);
                if (session.parallel->mpu().world().rank() == 3) session.optimizer->step();
              }),
              "the state of the optimizer differs between ranks: rank 0 has");
  EXPECT_SAYS(refused([](Session& session) {
                session.optimizer->param_groups()[0].options().set_lr(
                    std::numeric_limits<double>::infinity());
              }),
              "the optimizer's 'lr' is inf");
}

TEST_F(ResumeRefused, AModelWithANameThatStatesHave) {
  struct Named : torch::nn::Module {};
  Named model;
  model.register_module("optimizer/exp_avg/up", torch::nn::Linear(2, 3));
  EXPECT_SAYS(error_of([&] { save_parallelized(model, MPU(World::alone()), target_); }),
              "is kept for the states of optimizers");
}

}  // namespace
}  // namespace oslo::resume_test
