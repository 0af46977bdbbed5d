#include "mpu/decision.h"

#include <algorithm>
#include <exception>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "mpu/error.h"
#include "mpu/text.h"
#include "mpu/time_limit.h"

namespace oslo {
namespace {

using std::chrono::milliseconds;

/// How long rank 0 waits, at most, for the others to have read, and a rank for rank 0's answer
/// after rank 0's own time is over.
constexpr milliseconds kGrace = std::chrono::seconds(10);

/// A rank's text, or rank 0's answer.
struct Note {
  enum class Kind : char { text = 't', refused = 'r', failed = 'f', missing = 'm' };
  Kind kind = Kind::text;
  int rank = 0;     ///< that failed or is missing
  int readers = 0;  ///< of an answer: how many ranks besides rank 0 will read it
  std::string text;

  std::vector<uint8_t> bytes() const {
    const std::string all = c10::str(static_cast<char>(kind), rank, " ", readers, "\n", text);
    return {all.begin(), all.end()};
  }
  static Note parse(const std::vector<uint8_t>& bytes) {
    const std::string all(bytes.begin(), bytes.end());
    const size_t space = all.find(' '), line = all.find('\n');
    return {static_cast<Kind>(all.front()), std::stoi(all.substr(1, space - 1)),
            std::stoi(all.substr(space + 1, line - space - 1)), all.substr(line + 1)};
  }
};

/// The keys of one turn.
struct Keys {
  int64_t turn;
  std::string of(const char* what) const { return c10::str("decision/", turn, "/", what); }
  std::string entry(int rank) const { return c10::str("decision/", turn, "/", rank); }
  /// Rank 0 tells by its entry that it is here; what it says is in the answer.
  std::string answer() const { return of("answer"); }
};

bool present(c10d::Store& store, const std::string& key) {
  try {
    return store.check({key});
  } catch (const std::exception&) {
    return false;  // the store has gone
  }
}

[[noreturn]] void refuse(const Deciders& here, const std::string& topic, const Note& answer) {
  if (answer.kind == Note::Kind::refused) fail(answer.text);
  if (answer.rank == here.rank) {
    fail(here.name, " came too late (", topic, "): the others had waited for it for ",
         to_text(here.timeout));
  }
  const std::string waited =
      c10::str(here.name, " waited for rank ", answer.rank, " (", topic, ")");
  if (answer.kind == Note::Kind::failed) {
    fail(waited, ", but rank ", answer.rank, " failed: ", answer.text);
  }
  fail(waited, " for up to ", to_text(here.timeout),
       "; it has ended, or takes another way through the program (", answer.text, "); ",
       kTimeLimitHint);
}

/// Every rank's text, or who failed or is missing. Also counts the ranks that will read the answer.
Note collect(const Deciders& here, const Keys& keys, std::vector<std::string>& texts) {
  std::vector<std::string> entries;
  for (int rank = 1; rank < here.size; ++rank) entries.push_back(keys.entry(rank));
  std::string reason;
  try {
    here.store.wait(entries, here.timeout);
  } catch (const std::exception& error) {
    reason = first_line(message_of(error));
  }
  Note found;
  std::vector<std::vector<uint8_t>> there;
  if (reason.empty()) there = here.store.multiGet(entries);
  for (int rank = 1; rank < here.size; ++rank) {
    if (!reason.empty() && !present(here.store, entries[rank - 1])) {
      if (found.kind == Note::Kind::text)
        found = {Note::Kind::missing, rank, found.readers, reason};
      continue;
    }
    Note note = Note::parse(reason.empty() ? there[rank - 1] : here.store.get(entries[rank - 1]));
    if (note.kind == Note::Kind::text) {
      texts.push_back(std::move(note.text));
      ++found.readers;
    } else if (found.kind != Note::Kind::failed) {
      found = {note.kind, note.rank, found.readers, std::move(note.text)};
    }
  }
  return found;
}

/// Returns when all have read the answer.
void let_all_read(const Deciders& here, const Keys& keys, int readers) {
  if (readers == 0) return;
  try {
    here.store.wait({keys.of("all_read")}, std::min(here.timeout, kGrace));
  } catch (const std::exception&) {
    return;  // A rank has died meanwhile. Nobody needs what it did not read.
  }
  for (const char* what : {"readers", "all_read"}) here.store.deleteKey(keys.of(what));
}

/// Rank 0's part.
std::string lead(const Deciders& here, const Keys& keys, const std::string& topic,
                 const std::string& text, const Decide& decide) {
  here.store.set(keys.entry(0), Note{}.bytes());
  std::vector<std::string> texts{text};
  Note answer = collect(here, keys, texts);
  if (answer.kind == Note::Kind::text) {
    try {
      answer.text = decide(texts);
    } catch (const std::exception& error) {
      answer.kind = Note::Kind::refused;
      answer.text = message_of(error);
    }
  }
  here.store.set(keys.answer(), answer.bytes());
  let_all_read(here, keys, answer.readers);
  const bool all_came = answer.readers == here.size - 1;
  if (all_came) {  // else somebody may come late and ask
    here.store.deleteKey(keys.entry(0));
    here.store.deleteKey(keys.answer());
  }
  if (answer.kind != Note::Kind::text) refuse(here, topic, answer);
  return std::move(answer.text);
}

/// Rank 0's answer. As long as rank 0 waits for others itself, it is waited for.
Note await_answer(const Deciders& here, const Keys& keys) {
  std::string reason;
  for (const milliseconds limit : {here.timeout, here.timeout + std::min(here.timeout, kGrace)}) {
    try {
      here.store.wait({keys.answer()}, limit);
      return Note::parse(here.store.get(keys.answer()));
    } catch (const std::exception& error) {
      reason = first_line(message_of(error));
    }
    if (!present(here.store, keys.entry(0))) break;
  }
  return {Note::Kind::missing, 0, 0, reason};
}

/// Every other rank's part.
std::string follow(const Deciders& here, const Keys& keys, const std::string& topic,
                   const std::string& text) {
  here.store.set(keys.entry(here.rank), Note{Note::Kind::text, here.rank, 0, text}.bytes());
  Note answer = await_answer(here, keys);
  if (answer.readers > 0) {
    here.store.deleteKey(keys.entry(here.rank));
    if (here.store.add(keys.of("readers"), 1) == answer.readers) {
      here.store.set(keys.of("all_read"), Note{}.bytes());
    }
  }
  if (answer.kind != Note::Kind::text) refuse(here, topic, answer);
  return std::move(answer.text);
}

}  // namespace

std::string decide_together(const Deciders& deciders, int64_t turn, const std::string& topic,
                            const std::string& text, const Decide& decide) {
  const Keys keys{turn};
  return deciders.rank == 0 ? lead(deciders, keys, topic, text, decide)
                            : follow(deciders, keys, topic, text);
}

void give_up(const Deciders& deciders, int64_t turn, const std::string& what) {
  const Keys keys{turn};
  const std::vector<uint8_t> note = Note{Note::Kind::failed, deciders.rank, 0, what}.bytes();
  if (deciders.rank == 0) {
    deciders.store.set(keys.answer(), note);
    return;
  }
  deciders.store.set(keys.entry(deciders.rank), note);
  // In place of those who have not come, or rank 0 would wait for them in vain.
  for (int rank = 1; rank < deciders.size; ++rank) {
    if (rank != deciders.rank) deciders.store.compareSet(keys.entry(rank), {}, note);
  }
}

}  // namespace oslo
