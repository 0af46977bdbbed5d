// Message passing over the edges of graphs, in both habits: sums by index_add_ of gathered rows
// (GraphSAGE, GIN), and a softmax over the edges of a node (GAT).
#include "tests/programs_test/training_program.h"

namespace programs {
namespace {

namespace nn = torch::nn;

constexpr int64_t kNodes = 9, kFeatures = 5, kHidden = 14, kKinds = 3, kHeads = 2;

/// [2, edges]: every node has some that come in, of numbers that nothing divides.
Tensor edges() {
  const Tensor from = torch::arange(23).mul(5).remainder(kNodes);
  const Tensor to = torch::arange(23).mul(7).add(2).remainder(kNodes);
  return torch::stack({from, to});
}

/// The mean over neighbours beside the node itself.
struct SageLayerImpl : nn::Module {
  SageLayerImpl(int64_t in, int64_t out)
      : self(register_module("self", nn::Linear(in, out))),
        neighbours(
            register_module("neighbours", nn::Linear(nn::LinearOptions(in, out).bias(false)))) {}
  Tensor forward(const Tensor& x, const Tensor& edge) {
    const Tensor sent = x.index_select(0, edge[0]);
    const Tensor sum = torch::zeros_like(x).index_add_(0, edge[1], sent);
    const Tensor count = torch::bincount(edge[1], {}, x.size(0)).clamp_min(1).unsqueeze(1);
    return self(x) + neighbours(sum / count);
  }
  nn::Linear self, neighbours;
};
TORCH_MODULE(SageLayer);

/// Edges are weighed against those that come to the same node.
struct GatLayerImpl : nn::Module {
  GatLayerImpl(int64_t in, int64_t out)
      : project(register_module("project", nn::Linear(nn::LinearOptions(in, out).bias(false)))) {
    from = register_parameter("from", numbers({kHeads, out / kHeads}, 3) * 0.3);
    to = register_parameter("to", numbers({kHeads, out / kHeads}, 4) * 0.3);
  }
  Tensor forward(const Tensor& x, const Tensor& edge) {
    const Tensor h = project(x).view({x.size(0), kHeads, -1});
    const Tensor scores = nn::functional::leaky_relu(
        (h * from).sum(-1).index_select(0, edge[0]) + (h * to).sum(-1).index_select(0, edge[1]),
        nn::functional::LeakyReLUFuncOptions().negative_slope(0.2));
    const Tensor weights = (scores - scores.max().detach()).exp();  // [edges, heads]
    const Tensor all = x.new_zeros({x.size(0), kHeads}).index_add(0, edge[1], weights);
    const Tensor share = weights / all.index_select(0, edge[1]);
    const Tensor sent = h.index_select(0, edge[0]) * share.unsqueeze(-1);
    return torch::zeros_like(h).index_add(0, edge[1], sent).flatten(1);
  }
  nn::Linear project;
  Tensor from, to;
};
TORCH_MODULE(GatLayer);

struct GraphNetworkImpl : nn::Module {
  Tensor forward(const Tensor& x, const Tensor& edge, const Tensor& graph, int64_t graphs) {
    Tensor h = torch::relu(sage(x, edge));
    h = h + norm(torch::elu(gat(h, edge)));
    const Tensor pooled = h.new_zeros({graphs, kHidden}).index_add(0, graph, h);  // a sum a graph
    return out(torch::cat({pooled, pooled.tanh()}, 1));
  }
  SageLayer sage{register_module("sage", SageLayer(kFeatures, kHidden))};
  GatLayer gat{register_module("gat", GatLayer(kHidden, kHidden))};
  nn::LayerNorm norm{register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kHidden})))};
  nn::Linear out{register_module("out", nn::Linear(2 * kHidden, kKinds))};
};
TORCH_MODULE(GraphNetwork);

/// A batch of graphs is one graph of parts that nothing joins, as libraries of graphs have it.
void graph_network(Device& device) {
  constexpr int64_t kGraphs = 4;
  auto model = Device::make(5, [] { return GraphNetwork(); });
  const auto forward = [&](auto& module, const Tensor& features) {  // [graphs, kNodes, kFeatures]
    const int64_t graphs = features.size(0);
    const Tensor shift = torch::arange(graphs).mul(kNodes);
    const Tensor edge = (edges().unsqueeze(1) + shift.view({1, -1, 1})).flatten(1);
    return module.forward(features.flatten(0, 1), edge,
                          torch::arange(graphs).repeat_interleave(kNodes), graphs);
  };
  const auto features = [&](int step) {
    return device.part(numbers({kGraphs, kNodes, kFeatures}, 3.0 * step));
  };
  device.initialize(model, [&] { forward(*model, features(0)); });
  Replica replica(device, model);
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-2));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const Tensor scores = forward(replica, features(step));
    const Tensor loss =
        nn::functional::cross_entropy(scores, device.part(classes({kGraphs}, kKinds, step)));
    loss.backward();
    device.note_mean("loss", loss);
    device.note_rows("scores", scores);
    device.note_gradients("model", *model);
    optimizer.step();
  }
  device.note_model("model", *model);
}
TRAINING_PROGRAM(graph_network);

}  // namespace
}  // namespace programs
