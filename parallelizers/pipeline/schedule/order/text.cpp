#include "parallelizers/pipeline/schedule/order/text.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <sstream>
#include <vector>

#include "mpu/base/error.h"
#include "parallelizers/pipeline/schedule/order/check.h"

namespace oslo::pipeline {
namespace {

constexpr std::string_view kLetters = "FBIW";  // in the order of Pass
constexpr int kMostNumber = 1 << 20;

bool is_plain(const Schedule& schedule) {
  std::vector<int> plain(schedule.ranks);
  std::iota(plain.begin(), plain.end(), 0);
  return schedule.rank_of_stage == plain;
}

// The words of a line, one after the other.
class Line {
 public:
  Line(int number, const std::string& text)
      : number_(number), words_(text.substr(0, text.find('#'))) {}

  /// Empty at the end of the line.
  std::string word() {
    std::string word;
    words_ >> word;
    return word;
  }
  void expect(const std::string& wanted) {
    const std::string found = word();
    if (found != wanted) complain("\"" + wanted + "\" is expected", found);
  }
  int number(const std::string& word) const {
    int value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    const bool whole = error == std::errc() && end == word.data() + word.size();
    if (!whole || value < 0 || value > kMostNumber) complain("a number is expected", word);
    return value;
  }
  [[noreturn]] void complain(const std::string& what, const std::string& found) const {
    fail("schedule, line ", number_, ": ", what, ", not ",
         found.empty() ? "the end of the line" : "\"" + found + "\"");
  }

 private:
  int number_;
  std::istringstream words_;
};

Action parse_action(const Line& line, const std::string& word, int rank, int chunks) {
  const size_t letter = word.find_first_of(kLetters);
  if (letter == std::string::npos) line.complain("an action as 2F0 is expected", word);
  Action action;
  action.pass = static_cast<Pass>(kLetters.find(word[letter]));
  if (letter == 0 && chunks > 1) {
    line.complain("an action with its stage, as 2F0, is expected", word);
  }
  action.stage = letter == 0 ? rank : line.number(word.substr(0, letter));
  action.micro_batch = line.number(word.substr(letter + 1));
  return action;
}

void parse_sizes(Line& line, Schedule& schedule) {
  schedule.kind = line.word();
  for (const auto& [name, size] : {std::pair{"ranks", &schedule.ranks},
                                   {"micro_batches", &schedule.micro_batches},
                                   {"chunks", &schedule.chunks}}) {
    line.expect(name);
    const std::string word = line.word();
    *size = line.number(word);
    if (*size < 1) line.complain(std::string(name) + " of at least 1 are expected", word);
  }
  if (const std::string more = line.word(); !more.empty()) line.complain("nothing more", more);
}

// The rank of each stage is the one whose list names it.
void place_stages(Schedule& schedule) {
  const int64_t stages = int64_t{schedule.ranks} * schedule.chunks;
  OSLO_CHECK(stages <= kMostNumber, "schedule: ", stages, " stages are more than ", kMostNumber);
  schedule.rank_of_stage.assign(stages, -1);
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    for (const Action& action : schedule.actions[rank]) {
      OSLO_CHECK(action.stage < stages, "schedule: ", to_text(action), " of rank ", rank,
                 ": there are ", stages, " stages, from 0");
      int& of_stage = schedule.rank_of_stage[action.stage];
      OSLO_CHECK(of_stage == -1 || of_stage == rank, "schedule: stage ", action.stage,
                 " is on rank ", of_stage, " and on rank ", rank, " (", to_text(action), ")");
      of_stage = rank;
    }
  }
}

}  // namespace

std::string to_text(const Schedule& schedule) {
  const bool plain = is_plain(schedule);
  std::ostringstream text;
  text << schedule.kind << " ranks " << schedule.ranks << " micro_batches "
       << schedule.micro_batches << " chunks " << schedule.chunks << "\n";
  for (int rank = 0; rank < schedule.ranks; ++rank) {
    text << "rank " << rank << ":";
    for (const Action& action : schedule.actions[rank]) {
      const std::string word = to_text(action);
      text << ' ' << (plain ? word.substr(word.find_first_of(kLetters)) : word);
    }
    text << "\n";
  }
  return text.str();
}

Schedule parse_schedule(std::string_view text) {
  Schedule schedule;
  std::istringstream lines{std::string(text)};
  int number = 0;
  bool sizes_known = false;
  for (std::string content; std::getline(lines, content);) {
    Line line(++number, content);
    if (Line(number, content).word().empty()) continue;
    if (!sizes_known) {
      parse_sizes(line, schedule);
      sizes_known = true;
      continue;
    }
    const int rank = static_cast<int>(schedule.actions.size());
    line.expect("rank");
    line.expect(std::to_string(rank) + ":");
    std::vector<Action>& actions = schedule.actions.emplace_back();
    for (std::string word = line.word(); !word.empty(); word = line.word()) {
      actions.push_back(parse_action(line, word, rank, schedule.chunks));
    }
  }
  OSLO_CHECK(sizes_known,
             "schedule: nothing there; the first line is, for example, "
             "\"1f1b ranks 2 micro_batches 4 chunks 1\"");
  OSLO_CHECK(static_cast<int>(schedule.actions.size()) == schedule.ranks, "schedule: lists of ",
             schedule.actions.size(), " ranks, but \"ranks ", schedule.ranks, "\"");
  place_stages(schedule);
  check_lists(schedule);
  return schedule;
}

}  // namespace oslo::pipeline
