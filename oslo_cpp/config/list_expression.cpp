#include "oslo_cpp/config/list_expression.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>

#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"

namespace oslo {
namespace {

using List = std::vector<int>;
using Value = std::variant<int64_t, List>;

constexpr size_t kMostNumbers = 65536;
constexpr int kDeepest = 16;

/// sum: product { "+" product };  product: atom { "*" atom };  atom: number, list, "(" sum ")".
class ListReader {
 public:
  explicit ListReader(std::string_view text) : text_(text) {}

  List read() {
    Value value = sum();
    if (!at_end()) wrong("'+' or '*'");
    if (!std::holds_alternative<List>(value)) wrong_kind("a number, where a list is meant");
    return std::get<List>(std::move(value));
  }

 private:
  Value sum() {
    Value left = product();
    while (takes('+')) {
      Value right = product();
      if (left.index() != right.index()) wrong_kind("a list + a number");
      if (auto* list = std::get_if<List>(&left)) {
        const List& more = std::get<List>(right);
        check_length(list->size() + more.size());
        list->insert(list->end(), more.begin(), more.end());
      } else {
        left = bounded(std::get<int64_t>(left) + std::get<int64_t>(right));
      }
    }
    return left;
  }

  Value product() {
    Value left = atom();
    while (takes('*')) left = times(std::move(left), atom());
    return left;
  }

  Value times(Value left, Value right) {
    if (std::holds_alternative<int64_t>(left)) std::swap(left, right);
    const auto* const often = std::get_if<int64_t>(&right);
    if (often == nullptr) wrong_kind("a list * a list");
    if (const auto* number = std::get_if<int64_t>(&left)) return bounded(*number * *often);
    const List& once = std::get<List>(left);
    check_length(once.size() * static_cast<size_t>(*often));
    List all;
    for (int64_t i = 0; i < *often; ++i) all.insert(all.end(), once.begin(), once.end());
    return all;
  }

  Value atom() {
    if (takes('(')) {
      if (++depth_ > kDeepest) wrong("fewer parentheses");
      Value inside = sum();
      --depth_;
      if (!takes(')')) wrong("')'");
      return inside;
    }
    if (takes('[')) return list();
    return number();
  }

  List list() {
    List numbers;
    if (takes(']')) return numbers;
    do {
      if (peek() == ']') break;  // behind a last comma
      check_length(numbers.size() + 1);
      numbers.push_back(static_cast<int>(number()));
    } while (takes(','));
    if (!takes(']')) wrong("',' or ']'");
    return numbers;
  }

  int64_t number() {
    if (!is_digit(peek())) wrong("a number or '['");
    int64_t value = 0;
    for (; is_digit(text_.substr(at_, 1)); ++at_) value = bounded(value * 10 + (text_[at_] - '0'));
    return value;
  }

  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_digit(std::string_view one) { return !one.empty() && is_digit(one[0]); }

  char peek() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool at_end() { return peek() == '\0' && at_ == text_.size(); }
  bool takes(char c) {
    if (peek() != c || at_ == text_.size()) return false;
    ++at_;
    return true;
  }

  int64_t bounded(int64_t value) const {
    if (value > 1 << 20) wrong_kind("a number above 1048576");
    return value;
  }
  void check_length(size_t length) const {
    if (length > kMostNumbers) wrong_kind(c10::str("a list of more than ", kMostNumbers));
  }

  [[noreturn]] void wrong(const std::string& expected) {
    const bool ends = at_end();
    fail_as(ErrorKind::config, "expected ", expected, " at character ", at_ + 1, ", seen ",
            ends ? "the end" : "'" + printable(text_.substr(at_, 1)) + "'");
  }
  [[noreturn]] void wrong_kind(const std::string& seen) const {
    fail_as(ErrorKind::config, "seen ", seen,
            "; write a list of stages, as in [0]*6 + [1]*7 + [2]*7 + [3]*4");
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

std::vector<int> read_list(std::string_view text) {
  return ListReader(text).read();
}

}  // namespace oslo
