#include "mpu/transport/presence/note.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "mpu/base/error.h"

namespace oslo {
namespace {

/// 256 GiB of text: more is no note of ours.
constexpr int kMostPieces = 1 << 16;

std::string key_of_piece(const std::string& key, size_t piece) {
  return c10::str(key, "/piece/", piece);
}

[[noreturn]] void refuse(const std::string& key, size_t bytes) {
  fail(bytes, " bytes of '", key, "' ", kForeignNote);
}

/// Reads whole numbers and what stands behind them, and never past the end.
class NoteReader {
 public:
  NoteReader(std::string_view rest, const std::string& key)
      : rest_(rest), key_(key), bytes_(rest.size()) {}

  char letter(std::string_view allowed) {
    check(!rest_.empty() && allowed.find(rest_.front()) != std::string_view::npos);
    const char letter = rest_.front();
    rest_.remove_prefix(1);
    return letter;
  }
  int number_below(int end, char behind) {
    int number = -1;
    const auto [stop, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), number);
    check(error == std::errc() && stop != rest_.data() + rest_.size() && *stop == behind);
    check(number >= 0 && number < end);
    rest_.remove_prefix(stop - rest_.data() + 1);
    return number;
  }
  std::string_view rest() const { return rest_; }
  void check(bool sound) const {
    if (!sound) refuse(key_, bytes_);
  }

 private:
  std::string_view rest_;
  const std::string& key_;
  size_t bytes_;
};

std::string_view text_of(const std::vector<uint8_t>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::vector<uint8_t> Note::bytes() const {
  const std::string all = c10::str(static_cast<char>(kind), rank, " ", readers, " ", pieces(), "\n",
                                   std::string_view(text).substr(0, kPiece));
  return {all.begin(), all.end()};
}

void Note::write(c10d::Store& store, const std::string& key) const {
  for (size_t piece = 1; piece < pieces(); ++piece) {
    store.set(key_of_piece(key, piece), text.substr(piece * kPiece, kPiece));
  }
  store.set(key, bytes());  // last: whoever sees it finds the others
}

void Note::erase(c10d::Store& store, const std::string& key) const {
  store.deleteKey(key);
  for (size_t piece = 1; piece < pieces(); ++piece) store.deleteKey(key_of_piece(key, piece));
}

Note Note::read(c10d::Store& store, const std::string& key, int size) {
  return read(store, key, size, store.get(key));
}

Note Note::read(c10d::Store& store, const std::string& key, int size,
                const std::vector<uint8_t>& first) {
  NoteReader reader(text_of(first), key);
  Note note;
  note.kind = static_cast<Kind>(reader.letter("trfme"));
  note.rank = reader.number_below(size, ' ');
  note.readers = reader.number_below(size, ' ');
  const auto pieces = static_cast<size_t>(reader.number_below(kMostPieces, '\n'));
  note.text = reader.rest();
  reader.check(pieces > 1 ? note.text.size() == kPiece : note.text.size() <= kPiece);
  for (size_t piece = 1; piece < pieces; ++piece) {
    const std::vector<uint8_t> more = store.get(key_of_piece(key, piece));
    reader.check(piece + 1 < pieces ? more.size() == kPiece
                                    : !more.empty() && more.size() <= kPiece);
    note.text += text_of(more);
  }
  return note;
}

}  // namespace oslo
