#include <ATen/autocast_mode.h>

#include <stdexcept>

#include "tests/model_lifetime_test/scene.h"

namespace oslo::lifetime_test {
namespace {

template <typename Optimizer, typename Options>
void train(const Scene& scene, const Options& options) {
  Net model = scene.net();
  Optimizer optimizer(model->parameters(), options);
  auto parallel = scene.parallel(model);
  for (int i = 0; i < 2; ++i) {
    optimizer.zero_grad();
    step(model);
    parallel.clip_grad_norm_(1.0);
    optimizer.step();
  }
}

struct Doubled : torch::autograd::Function<Doubled> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return x * 2;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    context->get_saved_variables();
    return {gradients[0] * 2};
  }
};

}  // namespace

void add_training(Uses& uses) {
  add(uses, "nothing", [](const Scene& scene) {
    Net model = scene.net();
    scene.parallel(model);
  });
  add(uses, "the handle dies first", [](const Scene& scene) {
    Net model = scene.net();
    { scene.parallel(model); }
    step(model);
  });
  add(uses, "the model dies before its handle", [](const Scene& scene) {
    std::unique_ptr<ParallelModel> parallel;
    {
      Net model = scene.net();
      parallel = std::make_unique<ParallelModel>(scene.parallel(model));
      step(model);
    }
    parallel->plan().to_string();
  });
  add(uses, "an evaluation", [](const Scene& scene) {
    const torch::NoGradGuard no_grad;
    Net model = scene.net();
    const auto parallel = scene.parallel(model);
    model->eval();
    full_tensor(model->forward(ids()));
  });
  add(uses, "inference mode", [](const Scene& scene) {
    Net model = scene.net();
    const auto parallel = scene.parallel(model);
    model->eval();
    const c10::InferenceMode inference;
    full_tensor(model->forward(ids()));
  });
  add(uses, "a forward without backward", [](const Scene& scene) {
    Net model = scene.net();
    const auto parallel = scene.parallel(model);
    model->forward(ids());
  });
  add(uses, "SGD", [](const Scene& scene) {
    train<torch::optim::SGD>(scene, torch::optim::SGDOptions(0.1).momentum(0.9));
  });
  add(uses, "AdamW", [](const Scene& scene) {
    train<torch::optim::AdamW>(scene, torch::optim::AdamWOptions(1e-3).amsgrad(true));
  });
  add(uses, "Adagrad", [](const Scene& scene) {
    train<torch::optim::Adagrad>(scene, torch::optim::AdagradOptions(1e-3));
  });
  add(uses, "RMSprop", [](const Scene& scene) {
    train<torch::optim::RMSprop>(scene, torch::optim::RMSpropOptions(1e-3).centered(true));
  });
  add(uses, "an output that outlives the model", [](const Scene& scene) {
    Tensor output;
    {
      Net model = scene.net();
      const auto parallel = scene.parallel(model);
      output = model->forward(ids());
    }
    output.sum().item();
  });
  add(uses, "a parameter and its gradient that outlive the model", [](const Scene& scene) {
    Tensor weight, gradient;
    {
      Net model = scene.net();
      const auto parallel = scene.parallel(model);
      step(model);
      weight = model->up->weight;
      gradient = model->down->weight.grad();
    }
    gradient.mul_(2);
    full_tensor(weight);
  });
  add(uses, "a gradient that outlives its parameter and is used", [](const Scene& scene) {
    Tensor gradient;
    {
      Net model = scene.net();
      const auto parallel = scene.parallel(model);
      step(model);
      gradient = model->down->weight.grad();
    }
    full_tensor(gradient + gradient);
    gradient.add_(gradient);
  });
  add(uses, "a graph that is kept", [](const Scene& scene) {
    Net model = scene.net();
    const auto parallel = scene.parallel(model);
    const Tensor loss = loss_of(model->forward(ids()), ids());
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
  });
  add(uses, "second derivatives", [](const Scene& scene) {
    Net model = scene.net();
    const auto parallel = scene.parallel(model);
    model->eval();
    const Tensor loss = loss_of(model->forward(ids()), ids());
    const auto gradients =
        torch::autograd::grad({loss}, {model->up->weight, model->words->weight}, {},
                              /*retain_graph=*/true, /*create_graph=*/true);
    (gradients[0].pow(2).sum() + gradients[1].pow(2).sum()).backward();
  });
  add(uses, "gradients with a graph", [](const Scene& scene) {
    Net model = scene.net();
    const auto parallel = scene.parallel(model);
    model->eval();
    loss_of(model->forward(ids()), ids()).backward({}, {}, /*create_graph=*/true);
    // Otherwise a gradient, its graph and the parameter hold each other, as LibTorch warns.
    model->zero_grad();
  });
  add(uses, "hooks and retained gradients", [](const Scene& scene) {
    Net model = scene.net();
    const auto parallel = scene.parallel(model);
    model->up->weight.register_hook([](const Tensor& gradient) { return gradient * 2; });
    const Tensor hidden = model->up->forward(model->words->forward(ids()));
    hidden.retain_grad();
    hidden.register_hook([](const Tensor& gradient) { return gradient * 2; });
    model->down->forward(hidden).sum().backward();
    EXPECT_TRUE(hidden.grad().defined());
  });
  add(uses, "a function of one's own", [](const Scene& scene) {
    Net model = scene.net();
    const auto parallel = scene.parallel(model);
    const Tensor weight = Doubled::apply(model->up->weight);
    const Tensor hidden = Doubled::apply(model->words->forward(ids()).matmul(weight.t()));
    hidden.sum().backward();
  });
  add(uses, "views, writes and copies", [](const Scene& scene) {
    Net model = scene.net();
    const auto parallel = scene.parallel(model);
    Tensor hidden = model->up->forward(model->words->forward(ids()));
    hidden.slice(1, 0, 2).mul_(2);
    hidden.select(0, 1).sum().backward();
    const Tensor copy = model->up->weight.clone().detach().requires_grad_(true);
    copy.sum().backward();
    const torch::NoGradGuard no_grad;
    model->up->weight.mul_(0.5);
    model->up->weight.set_data(model->up->weight.detach().clone());
  });
  add(uses, "another type", [](const Scene& scene) {
    Net model = scene.net();
    const auto parallel = scene.parallel(model);
    step(model);
    model->zero_grad();
    model->to(torch::kDouble);
    step(model);
  });
  add(uses, "parameters that are frozen", [](const Scene& scene) {
    Net model = scene.net();
    model->up->weight.requires_grad_(false);
    const auto parallel = scene.parallel(model);
    model->down->weight.requires_grad_(false);
    step(model);
    model->down->weight.requires_grad_(true);
    step(model);
  });
  add(uses, "tied weights", [](const Scene& scene) {
    Net model = scene.net();
    model->head->weight = model->words->weight;
    const auto parallel = scene.parallel(model);
    step(model);
  });
  add(uses, "a copy of a layer", [](const Scene& scene) {
    Net model = scene.net();
    const auto parallel = scene.parallel(model);
    const auto copy = std::dynamic_pointer_cast<torch::nn::LinearImpl>(model->up->clone());
    copy->forward(model->words->forward(ids())).sum().backward();
  });
  add(uses, "autocast", [](const Scene& scene) {
    Net model = scene.net();
    const auto parallel = scene.parallel(model);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::increment_nesting();
    const Tensor loss = loss_of(model->forward(ids()), ids());
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    loss.backward();
  });
  add(uses, "a forward that throws", [](const Scene& scene) {
    Net model = scene.net();
    const auto parallel = scene.parallel(model);
    throw_in([&] { model->down->forward(model->forward(ids())); });
  });
  add(uses, "a backward that throws", [](const Scene& scene) {
    Net model = scene.net();
    const auto parallel = scene.parallel(model);
    const Tensor waits = model->up->forward(model->words->forward(ids()));
    const Tensor hidden = model->up->forward(model->words->forward(ids()));
    hidden.register_hook([](const Tensor& gradient) -> Tensor {
      OSLO_CHECK(false, "a hook that fails");
      return gradient;
    });
    throw_in([&] { (waits.sum() + model->down->forward(hidden).sum()).backward(); });
  });
  add(uses, "a plan that does not fit", [](const Scene& scene) {
    Net model = scene.net();
    Config config = scene.config();
    config.set(R"(plan={"nowhere": "column"})");
    throw_in([&] { initialize(model, config, scene.how([&] { model->forward(ids()); })); });
  });
}

}  // namespace oslo::lifetime_test
