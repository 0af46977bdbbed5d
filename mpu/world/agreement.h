#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "mpu/group/group.h"
#include "mpu/world/world.h"

namespace oslo {

// How ranks come to one mind: all go on, or all throw the same `Error`. Over a world it takes a few
// store calls a rank and no collective; call each on every rank. `topic` names the purpose when a
// rank does not answer in time. At size 1 nobody is asked.

/// Runs `step` on every rank and returns once all have ended. If it threw on any, every rank throws
/// the message of the first such rank, led by its number unless all ranks say the same. So a
/// mistake ends a job soon, nobody goes on with half a group, and nobody waits in a collective for
/// a rank that has given up.
void agree_on_success(const World& world, const std::string& topic,
                      const std::function<void()>& step);

/// The same for a step with a result: returns that of rank 0.
std::string result_of_first(const World& world, const std::string& topic,
                            const std::function<std::string()>& step);

/// The same for a step whose result must be the same on all ranks: otherwise every rank throws
/// "rank 3 and rank 0 " and `differ`.
void agree_on_result(const World& world, const std::string& topic,
                     const std::function<std::string()>& step, const std::string& differ);

/// Where the text of `rank` differs from that of `first`, the first rank that it is compared with:
/// the first line that does, as either has it ("(nothing)" past a text's end).
struct Disagreement {
  int first, rank;
  std::string first_line, line;
};
using TellDisagreement = std::function<std::string(const Disagreement&)>;

/// Throws what `tell` says of the first disagreement unless the ranks of each group (all ranks, if
/// no groups are given) have the same text. Texts travel only where their digests differ.
void agree_on_text(const World& world, const std::string& topic, const std::string& text,
                   const TellDisagreement& tell, const std::vector<std::vector<int>>& groups = {});

/// The same in the usual words: "`what` differs between ranks: rank 0 has ..., rank 1 has ...;
/// `fix`".
void agree_on_text(const World& world, const std::string& what, const std::string& text,
                   const std::string& fix, const std::vector<std::vector<int>>& groups = {});

/// The same for the ranks of a group, by collectives: one small one where they agree. Ranks are
/// told by their numbers in the world.
void agree_on_text(Group& group, const std::string& text, const TellDisagreement& tell);

}  // namespace oslo
