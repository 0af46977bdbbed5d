#include "parallelizers/pipeline/schedule/order/graph.h"

namespace oslo::pipeline {

Graph Graph::chain(int stages) {
  Graph graph;
  graph.stages = stages;
  for (int stage = 1; stage < stages; ++stage) graph.edges.push_back({stage - 1, stage});
  return graph;
}

void Graph::read_by_all(int owner, const Schedule& schedule) {
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    if (rank == schedule.rank_of_stage[owner]) continue;
    int reader = -1;
    for (const int stage : schedule.stages_of(rank)) {
      if (reader == -1 || stage <= owner) reader = stage;
    }
    reads.push_back({owner, reader});
  }
}

}  // namespace oslo::pipeline
