// A model of one's own that `oslo train --model-library` trains: docs/train.md shows it.
#include <oslo_cpp/train_net/trained_model.h>
#include <torch/torch.h>

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t width) : first(2, width), second(width, 2) {
    register_module("first", first);
    register_module("second", second);
  }
  torch::Tensor forward(const torch::Tensor& x) { return second(torch::gelu(first(x))); }

  torch::nn::Linear first, second;
};
TORCH_MODULE(Net);

/// Points of the plane, and on which side of a circle they lie.
static std::vector<torch::Tensor> point(int64_t number) {
  const double angle = 0.37 * static_cast<double>(number), radius = 0.1 * (number % 20);
  const torch::Tensor place = torch::tensor({radius * std::cos(angle), radius * std::sin(angle)});
  return {place.to(torch::kFloat), torch::tensor(int64_t{radius > 1})};
}

static oslo::TrainedModel make_net(const oslo::ModelRequest& request) {
  Net net(request.cfg.value("width", 16));
  oslo::TrainedModel trained;
  trained.model = net.ptr();
  trained.forward = [net](const std::vector<torch::Tensor>& batch) mutable {
    return net->forward(batch[0]);
  };
  trained.criterion = [](const torch::Tensor& output, const std::vector<torch::Tensor>& batch) {
    const auto sum = torch::nn::functional::cross_entropy(
        output, batch[1], torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
    return oslo::CountedLoss{sum, batch[1].numel()};
  };
  trained.train = {request.train.value("samples", 100), point};
  return trained;
}

OSLO_TRAINED_MODELS({"net", make_net})
