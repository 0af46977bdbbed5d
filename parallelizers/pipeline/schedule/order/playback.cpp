#include "parallelizers/pipeline/schedule/order/playback.h"

#include <algorithm>

namespace oslo::pipeline {
namespace {

constexpr double kNotYet = -1;

// When a stage's passes were computed, by micro-batch; a whole backward is its input's.
struct Done {
  std::vector<double> forward, backward;
};

class Player {
 public:
  Player(const Schedule& schedule, const Graph& graph, const Costs& costs)
      : schedule_(schedule),
        costs_(costs),
        done_(schedule.stages(), {std::vector<double>(schedule.micro_batches, kNotYet),
                                  std::vector<double>(schedule.micro_batches, kNotYet)}),
        inputs_(schedule.stages()),
        outputs_(schedule.stages()),
        reads_below_(schedule.stages()),
        reads_above_(schedule.stages()),
        states_(schedule.ranks) {
    for (const Graph::Edge& edge : graph.edges) {
      inputs_[edge.to].push_back(edge.from);
      if (edge.gradient) outputs_[edge.from].push_back(edge.to);
    }
    for (const Graph::Read& read : graph.reads) {
      if (read.owner < read.reader) reads_below_[read.reader].push_back(read.owner);
      if (read.owner > read.reader) reads_above_[read.reader].push_back(read.owner);
    }
  }

  Playback play() {
    playback_.runs.resize(schedule_.ranks);
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < schedule_.ranks; ++rank) {
        while (step(rank)) moved = true;
      }
    }
    find_circle();
    return std::move(playback_);
  }

 private:
  struct State {
    size_t next = 0;
    bool computed = false;  ///< the action is computed, but reads something that is not there
    double free = 0;        ///< since when the rank has nothing to do
    Stand stand;            ///< what it waits for, if it does
  };

  // The needs of an action that is about to begin, or of one that is computed, in `stages`; all of
  // them there: true, with the arrival of the last one.
  bool all_there(int rank, const Action& action, const std::vector<int>& stages, Stand::For what,
                 double& arrival, bool& crossed) {
    for (const int stage : stages) {
      const bool gradient = what == Stand::For::gradient;
      const Done& done = done_[stage];
      const double at = (gradient ? done.backward : done.forward)[action.micro_batch];
      if (at == kNotYet) {
        states_[rank].stand = {
            rank,
            action,
            {gradient ? Pass::backward : Pass::forward, stage, action.micro_batch},
            what};
        return false;
      }
      const bool crosses = schedule_.rank_of_stage[stage] != rank;
      const double there = at + (crosses ? costs_.hop : 0);
      if (there > arrival) {
        arrival = there;
        crossed = crosses;
      }
    }
    return true;
  }

  double cost_of(const Action& action) const {
    switch (action.pass) {
      case Pass::forward:
        return costs_.forward[action.stage];
      case Pass::backward:
        return costs_.input[action.stage] + costs_.weight[action.stage];
      case Pass::backward_input:
        return costs_.input[action.stage];
      case Pass::backward_weight:
        return costs_.weight[action.stage];
    }
    return 0;
  }

  // Brings `rank` one action further, or half of one. False where it has to wait or is done.
  bool step(int rank) {
    State& state = states_[rank];
    const std::vector<Action>& list = schedule_.actions[rank];
    if (state.next == list.size()) return false;
    const Action& action = list[state.next];
    double arrival = state.free;
    bool crossed = false;
    const auto under_way = [&] { return crossed ? std::min(costs_.hop, arrival - state.free) : 0; };
    if (state.computed) {
      if (!all_there(rank, action, reads_above_[action.stage], Stand::For::read, arrival,
                     crossed)) {
        return false;
      }
      Run& run = playback_.runs[rank].back();
      run.end = arrival;
      run.read_arriving = under_way();
      state.free = arrival;
      state.computed = false;
      ++state.next;
      return true;
    }
    if (action.pass == Pass::forward) {
      if (!all_there(rank, action, inputs_[action.stage], Stand::For::value, arrival, crossed) ||
          !all_there(rank, action, reads_below_[action.stage], Stand::For::read, arrival,
                     crossed)) {
        return false;
      }
    } else if (action.pass != Pass::backward_weight &&
               !all_there(rank, action, outputs_[action.stage], Stand::For::gradient, arrival,
                          crossed)) {
      return false;
    }
    const double computed = arrival + cost_of(action);
    playback_.runs[rank].push_back({action, arrival, computed, computed, under_way(), 0});
    state.free = computed;
    state.computed = true;
    Done& done = done_[action.stage];
    if (action.pass == Pass::forward) {
      done.forward[action.micro_batch] = computed;
    } else if (action.pass != Pass::backward_weight) {
      done.backward[action.micro_batch] = computed;
    }
    return true;
  }

  // Who stands waits for a rank that stands, too. So from any of them the way comes round.
  void find_circle() {
    int rank = 0;
    while (rank < schedule_.ranks && states_[rank].next == schedule_.actions[rank].size()) ++rank;
    if (rank == schedule_.ranks) return;
    std::vector<int> way;
    while (std::find(way.begin(), way.end(), rank) == way.end()) {
      way.push_back(rank);
      rank = schedule_.rank_of_stage[states_[rank].stand.needed.stage];
    }
    for (auto at = std::find(way.begin(), way.end(), rank); at != way.end(); ++at) {
      Stand& stand = playback_.circle.emplace_back(states_[*at].stand);
      name_backward(stand.needed);
    }
  }

  // A gradient comes from a whole backward or from one of the input, as the list has it.
  void name_backward(Action& needed) const {
    if (needed.pass != Pass::backward) return;
    const auto& list = schedule_.actions[schedule_.rank_of_stage[needed.stage]];
    if (std::find(list.begin(), list.end(), needed) == list.end()) {
      needed.pass = Pass::backward_input;
    }
  }

  const Schedule& schedule_;
  const Costs& costs_;
  std::vector<Done> done_;  // by stage, as all of these
  std::vector<std::vector<int>> inputs_, outputs_;
  std::vector<std::vector<int>> reads_below_, reads_above_;
  std::vector<State> states_;  // by rank
  Playback playback_;
};

}  // namespace

Costs Costs::unit(int stages) {
  return {std::vector<double>(stages, 1), std::vector<double>(stages, 1),
          std::vector<double>(stages, 1), 0};
}

Playback play(const Schedule& schedule, const Graph& graph, const Costs& costs) {
  return Player(schedule, graph, costs).play();
}

std::string circle_text(const std::vector<Stand>& circle) {
  std::string text;
  for (size_t i = 0; i < circle.size(); ++i) {
    const Stand& stand = circle[i];
    const Stand& next = circle[(i + 1) % circle.size()];
    if (i > 0) text += "; ";
    text += "rank " + std::to_string(stand.rank) + " stands in " + to_text(stand.action);
    text += stand.what == Stand::For::read       ? ", whose forward reads a value of "
            : stand.what == Stand::For::gradient ? ", which needs the gradient of "
                                                 : ", which needs the result of ";
    text += to_text(stand.needed);
    if (next.action != stand.needed) {
      text += ", and rank " + std::to_string(next.rank) + " comes to that only after " +
              to_text(next.action);
    }
  }
  return text;
}

}  // namespace oslo::pipeline
