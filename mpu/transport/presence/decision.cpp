#include "mpu/transport/presence/decision.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/base/text.h"
#include "mpu/base/time_limit.h"
#include "mpu/base/told_error.h"
#include "mpu/transport/presence/note.h"
#include "mpu/transport/presence/presence.h"
#include "mpu/transport/presence/watched_store.h"

namespace oslo {
namespace {

using std::chrono::milliseconds;

/// How long rank 0 waits, at most, for the others to have read, and a rank for rank 0's answer
/// after rank 0's own time is over.
constexpr milliseconds kGrace = std::chrono::seconds(10);

/// Of what `give_up` tells: it is one value.
constexpr size_t kLongestReason = size_t{1} << 16;

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
  if (answer.kind == Note::Kind::refused) {
    const ToldError error = ToldError::read(answer.text);
    fail_as(error.kind, error.message);
  }
  if (answer.rank == here.rank) {
    fail_as(ErrorKind::peer, here.name, " came too late (", topic,
            "): the others had waited for it for ", to_text(here.timeout));
  }
  const int rank = here.in_world(answer.rank);
  const std::string waited = c10::str(here.name, " waited for rank ", rank, " (", topic, ")");
  if (answer.kind == Note::Kind::failed) {
    fail_as(ErrorKind::peer, waited, ", but rank ", rank, " failed: ", answer.text);
  }
  const std::string cause = here.presence == nullptr ? "" : here.presence->cause(/*patient=*/false);
  if (answer.kind == Note::Kind::ended) {
    const bool first = cause.empty() || cause.find(answer.text) != std::string::npos;
    fail_as(ErrorKind::peer, waited, "; ", cause.empty() ? answer.text : cause,
            first ? "" : " (" + answer.text + ")");
  }
  // Where the cause is known the store tells what came of it: rank 0, who hosts it, gave up first.
  const std::string told = cause.empty() ? c10::str(" (", answer.text, ")") : "";
  fail_as(ErrorKind::peer, waited, " for up to ", to_text(here.timeout), "; ",
          cause.empty() ? "it has ended, or takes another way through the program" : cause, told,
          "; ", kTimeLimitHint);
}

/// Of a decider of this host whose process has ended.
std::optional<Note> who_has_ended(const Deciders& here) {
  for (int rank = 0; rank < here.size; ++rank) {
    const std::string ended = here.presence->ended(here.in_world(rank));
    if (!ended.empty()) return Note{Note::Kind::ended, rank, 0, ended};
  }
  return std::nullopt;
}

/// Waits for `keys`, unless `stop`, which is asked now and then where ranks see each other's
/// processes. Throws as the store does.
bool wait_for(const Deciders& here, const std::vector<std::string>& keys, milliseconds limit,
              const std::function<bool()>& stop) {
  if (here.presence != nullptr && here.presence->looks()) {
    return wait_watching(here.store, keys, limit, stop);
  }
  here.store.wait(keys, limit);
  return true;
}

/// Every rank's text, or who failed, has ended or is missing. Also counts the ranks that will read
/// the answer.
Note collect(const Deciders& here, const Keys& keys, std::vector<std::string>& texts) {
  std::vector<std::string> entries;
  for (int rank = 1; rank < here.size; ++rank) entries.push_back(keys.entry(rank));
  std::string reason;
  std::optional<Note> ended;
  const auto stop = [&] {
    ended = who_has_ended(here);
    // Of a rank on another host, whom only ranks there see.
    if (!ended && here.store.check({keys.answer()})) {
      ended = Note::read(here.store, keys.answer(), here.size);
    }
    return ended.has_value();
  };
  try {
    if (!wait_for(here, entries, here.timeout, stop)) return *ended;
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
    const std::string& key = entries[rank - 1];
    Note note;
    try {
      note = reason.empty() ? Note::read(here.store, key, here.size, there[rank - 1])
                            : Note::read(here.store, key, here.size);
    } catch (const Error& error) {
      note = {Note::Kind::refused, rank, 0, ToldError::of(error).text()};
    }
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
    const auto stop = [&] { return who_has_ended(here).has_value(); };
    if (!wait_for(here, {keys.of("all_read")}, std::min(here.timeout, kGrace), stop)) return;
  } catch (const std::exception&) {
    return;  // A rank has died meanwhile. Nobody needs what it did not read.
  }
  for (const char* what : {"readers", "all_read"}) here.store.deleteKey(keys.of(what));
}

/// Rank 0's part.
std::string lead(const Deciders& here, const Keys& keys, const std::string& topic,
                 const std::string& text, const Decide& decide) {
  Note{}.write(here.store, keys.entry(0));
  std::vector<std::string> texts{text};
  Note answer = collect(here, keys, texts);
  if (answer.kind == Note::Kind::text) {
    try {
      answer.text = decide(texts);
    } catch (const std::exception& error) {
      answer.kind = Note::Kind::refused;
      answer.text = ToldError::of(error).text();
    }
  }
  answer.write(here.store, keys.answer());
  let_all_read(here, keys, answer.readers);
  const bool all_came = answer.readers == here.size - 1;
  if (all_came) {  // else somebody may come late and ask
    Note{}.erase(here.store, keys.entry(0));
    answer.erase(here.store, keys.answer());
  }
  if (answer.kind != Note::Kind::text) refuse(here, topic, answer);
  return std::move(answer.text);
}

/// Rank 0's answer, or what a rank says that has seen another one end. As long as rank 0 waits for
/// others itself, it is waited for.
Note await_answer(const Deciders& here, const Keys& keys) {
  std::string reason;
  std::optional<Note> ended;
  const auto stop = [&] {
    ended = who_has_ended(here);
    return ended.has_value();
  };
  for (const milliseconds limit : {here.timeout, here.timeout + std::min(here.timeout, kGrace)}) {
    try {
      if (wait_for(here, {keys.answer()}, limit, stop)) {
        return Note::read(here.store, keys.answer(), here.size);
      }
      // Instead of rank 0's answer, which may have come meanwhile: then the rank ended behind it.
      return Note::read(here.store, keys.answer(), here.size,
                        here.store.compareSet(keys.answer(), {}, ended->bytes()));
    } catch (const Error& error) {
      // Of the store itself, or of what somebody else wrote there.
      return {Note::Kind::missing, 0, 0, error.what()};
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
  const Note own{Note::Kind::text, here.rank, 0, text};
  Note answer;
  try {
    own.write(here.store, keys.entry(here.rank));
    answer = await_answer(here, keys);
  } catch (const Error& error) {  // the store has gone with rank 0
    answer = {Note::Kind::missing, 0, 0, error.what()};
  }
  try {
    if (answer.readers > 0) {
      own.erase(here.store, keys.entry(here.rank));
      if (here.store.add(keys.of("readers"), 1) == answer.readers) {
        Note{}.write(here.store, keys.of("all_read"));
      }
    }
  } catch (const Error&) {
    // Rank 0 has ended meanwhile, perhaps of what it answered: that is known here.
  }
  if (answer.kind != Note::Kind::text) refuse(here, topic, answer);
  return std::move(answer.text);
}

}  // namespace

std::string decide_together(const Deciders& deciders, int64_t turn, const std::string& topic,
                            const std::string& text, const Decide& decide) {
  const Keys keys{turn};
  try {
    return deciders.rank == 0 ? lead(deciders, keys, topic, text, decide)
                              : follow(deciders, keys, topic, text);
  } catch (const c10::Error& error) {
    fail_as(ErrorKind::peer, deciders.name, " (", topic, "): ", first_line(message_of(error)));
  }
}

void give_up(const Deciders& deciders, int64_t turn, const std::string& what) {
  const Keys keys{turn};
  const std::vector<uint8_t> note =
      Note{Note::Kind::failed, deciders.rank, 0, what.substr(0, kLongestReason)}.bytes();
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
