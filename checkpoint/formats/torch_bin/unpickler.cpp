#include "checkpoint/formats/torch_bin/unpickler.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <iterator>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checkpoint/formats/torch_bin/pickle_value.h"
#include "checkpoint/formats/torch_bin/tensor_builder.h"
#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"

namespace oslo {
namespace pickle {
namespace {

/// Of stack, memo and marks together: enough for 150,000 tensors.
constexpr size_t kMostValues = size_t{1} << 22;

class Machine {
 public:
  Machine(std::string_view program, const std::string& file, const StorageLoader& load_storage)
      : program_(program), file_(file), builder_(file, load_storage) {}

  StateDict run();

 private:
  template <typename... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const {
    fail_as(ErrorKind::file, file_, ": ", parts...);
  }

  // Reading the program.
  std::string_view take(uint64_t bytes);
  uint64_t take_unsigned(int bytes);
  int64_t take_signed(int bytes);
  std::string_view take_line();

  // The stack.
  template <typename T>
  void push(T&& value) {
    count_value();
    stack_.emplace_back(std::forward<T>(value));
  }
  void count_value();
  Value pop();
  Value& top();
  std::vector<Value> pop_to_mark();
  void push_sequence(std::vector<Value> items);
  void push_last(size_t count);

  void step(uint8_t operation);
  void set_items(std::vector<Value> items);
  void append(std::vector<Value> items);
  void memoize(uint64_t slot) {
    count_value();
    memo_[slot] = top();
  }
  void recall(uint64_t slot);

  Value reduce(const Global& function, const std::vector<Value>& arguments);

  template <typename T>
  const T& as(const Value& value, const char* what) const {
    return pickle::as<T>(value, what, file_);
  }

  std::string_view program_;
  const std::string& file_;
  const TensorBuilder builder_;
  size_t at_ = 0;
  size_t values_ = 0;
  std::vector<Value> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, Value> memo_;
  // Containers live here, so that one that holds itself is freed too.
  std::deque<Sequence> sequences_;
  std::deque<Dict> dicts_;
};

void Machine::count_value() {
  if (++values_ > kMostValues) {
    refuse("the pickle makes more than the ", kMostValues, " values that are read at most");
  }
}

std::string_view Machine::take(uint64_t bytes) {
  if (bytes > program_.size() - at_) {
    refuse("the pickle ends at byte ", program_.size(), " in the middle of a value: it is cut");
  }
  const std::string_view taken = program_.substr(at_, bytes);
  at_ += bytes;
  return taken;
}

uint64_t Machine::take_unsigned(int bytes) {
  uint64_t value = 0;
  std::memcpy(&value, take(bytes).data(), bytes);
  return value;
}

int64_t Machine::take_signed(int bytes) {
  if (bytes == 0) {
    return 0;
  }
  const int unused = 64 - 8 * bytes;
  return static_cast<int64_t>(take_unsigned(bytes) << unused) >> unused;
}

std::string_view Machine::take_line() {
  const size_t end = program_.find('\n', at_);
  if (end == std::string_view::npos) {
    refuse("the pickle ends in the middle of a name: it is cut");
  }
  const std::string_view line = take(end - at_);
  ++at_;
  return line;
}

Value& Machine::top() {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) {
    refuse("the pickle uses a value before making it, at byte ", at_, ": it is damaged");
  }
  return stack_.back();
}

Value Machine::pop() {
  Value value = std::move(top());
  stack_.pop_back();
  return value;
}

std::vector<Value> Machine::pop_to_mark() {
  if (marks_.empty()) {
    refuse("the pickle closes what it never opened, at byte ", at_, ": it is damaged");
  }
  const auto first = stack_.begin() + static_cast<ptrdiff_t>(marks_.back());
  std::vector<Value> items(std::make_move_iterator(first), std::make_move_iterator(stack_.end()));
  stack_.erase(first, stack_.end());
  marks_.pop_back();
  return items;
}

void Machine::push_sequence(std::vector<Value> items) {
  push(&sequences_.emplace_back(Sequence{std::move(items)}));
}

void Machine::push_last(size_t count) {
  std::vector<Value> items(count);
  for (size_t i = count; i-- > 0;) {
    items[i] = pop();
  }
  push_sequence(std::move(items));
}

void Machine::set_items(std::vector<Value> items) {
  Dict* dict = as<Dict*>(top(), "a dict");
  if (items.size() % 2 != 0) {
    refuse("the pickle gives a dict a key without a value: it is damaged");
  }
  for (size_t i = 0; i < items.size(); i += 2) {
    dict->items.emplace_back(std::move(items[i]), std::move(items[i + 1]));
  }
}

void Machine::append(std::vector<Value> items) {
  Sequence* list = as<Sequence*>(top(), "a list");
  std::move(items.begin(), items.end(), std::back_inserter(list->items));
}

void Machine::recall(uint64_t slot) {
  const auto found = memo_.find(slot);
  if (found == memo_.end()) {
    refuse("the pickle recalls value ", slot, ", which it never stored: it is damaged");
  }
  push(found->second);
}

void Machine::step(uint8_t operation) {
  switch (operation) {
    case 0x80:  // PROTO
      if (const uint64_t protocol = take_unsigned(1); protocol != 2) {
        refuse("it is pickled with protocol ", protocol, "; save it with torch.save's default, 2");
      }
      return;
    case 'N':
      return push(None{});  // NONE
    case 0x88:
      return push(true);  // NEWTRUE
    case 0x89:
      return push(false);  // NEWFALSE
    case 'K':
      return push(static_cast<int64_t>(take_unsigned(1)));
    case 'M':
      return push(static_cast<int64_t>(take_unsigned(2)));
    case 'J':
      return push(take_signed(4));  // BININT
    case 0x8a: {                    // LONG1
      const uint64_t bytes = take_unsigned(1);
      if (bytes > 8) {
        refuse("the pickle has a number of ", bytes, " bytes; no tensor size is that large");
      }
      return push(take_signed(static_cast<int>(bytes)));
    }
    case 'G': {  // BINFLOAT, the one big-endian value
      const uint64_t bits = __builtin_bswap64(take_unsigned(8));
      return push(std::bit_cast<double>(bits));
    }
    case 'X':
      return push(take(take_unsigned(4)));
    case '(':  // MARK
      count_value();
      return marks_.push_back(stack_.size());
    case ')':
      return push_sequence({});  // EMPTY_TUPLE
    case ']':
      return push_sequence({});  // EMPTY_LIST
    case 't':
      return push_sequence(pop_to_mark());  // TUPLE
    case 0x85:
      return push_last(1);  // TUPLE1
    case 0x86:
      return push_last(2);  // TUPLE2
    case 0x87:
      return push_last(3);  // TUPLE3
    case 'a': {             // APPEND
      Value item = pop();
      return append({std::move(item)});
    }
    case 'e':
      return append(pop_to_mark());  // APPENDS
    case '}':
      return push(&dicts_.emplace_back());  // EMPTY_DICT
    case 's': {                             // SETITEM
      Value value = pop();
      Value key = pop();
      return set_items({std::move(key), std::move(value)});
    }
    case 'u':
      return set_items(pop_to_mark());  // SETITEMS
    case 'q':
      return memoize(take_unsigned(1));  // BINPUT
    case 'r':
      return memoize(take_unsigned(4));  // LONG_BINPUT
    case 'h':
      return recall(take_unsigned(1));  // BINGET
    case 'j':
      return recall(take_unsigned(4));  // LONG_BINGET
    case 'c': {                         // GLOBAL
      const std::string_view module = take_line();
      const std::string_view name = take_line();
      return push(builder_.find_global(module, name));
    }
    case 'Q': {  // BINPERSID
      const Value id = pop();
      return push(builder_.load(id));
    }
    case 'R': {  // REDUCE
      const Value arguments = pop();
      const Value function = pop();
      return push(
          reduce(as<Global>(function, "a function"), as<Sequence*>(arguments, "a tuple")->items));
    }
    case 'b': {  // BUILD: the attributes of an OrderedDict, `_metadata`, mean nothing here
      const Value attributes = pop();
      as<Dict*>(attributes, "a dict of attributes");
      as<Dict*>(top(), "an OrderedDict");
      return;
    }
    default:
      refuse("the pickle uses operation ", static_cast<int>(operation), " at byte ", at_ - 1,
             ", which no state_dict needs; save model.state_dict() with torch.save's defaults");
  }
}

Value Machine::reduce(const Global& function, const std::vector<Value>& arguments) {
  switch (function.kind) {
    case Global::Kind::kOrderedDict:
      if (!arguments.empty()) {
        refuse("the pickle makes an OrderedDict from ", arguments.size(), " arguments, not none");
      }
      return &dicts_.emplace_back();
    case Global::Kind::kTensor:
      return builder_.build(arguments, false);
    case Global::Kind::kTensorWithDtype:
      return builder_.build(arguments, true);
    case Global::Kind::kParameter:
      if (arguments.empty()) {
        refuse("the pickle makes a parameter from nothing: it is damaged");
      }
      return as<at::Tensor>(arguments[0], "a parameter's tensor");
    case Global::Kind::kStorage:
    case Global::Kind::kDtype:
      break;
  }
  refuse("the pickle calls a storage class or a dtype: it is damaged");
}

StateDict Machine::run() {
  while (true) {
    const auto operation = static_cast<uint8_t>(take_unsigned(1));
    if (operation == '.') {  // STOP
      break;
    }
    step(operation);
  }
  const Value result = pop();
  if (!std::holds_alternative<Dict*>(result)) {
    refuse("it holds ", kind_of(result), ", not a dict of tensors; save model.state_dict()");
  }
  StateDict state;
  for (const auto& [key, value] : std::get<Dict*>(result)->items) {
    const std::string name(as<std::string_view>(key, "a tensor's name"));
    if (!std::holds_alternative<at::Tensor>(value)) {
      refuse("the entry '", printable(name), "' is ", kind_of(value),
             ", not a tensor; save model.state_dict() alone");
    }
    if (state.contains(name)) {
      refuse("the entry '", printable(name), "' is there twice");
    }
    if (!is_utf8(name) || name.find('\0') != std::string::npos) {
      refuse("the name '", printable(name), "' of a tensor is not UTF-8, or holds a NUL byte");
    }
    state.insert(name, std::get<at::Tensor>(value));
  }
  return state;
}

}  // namespace
}  // namespace pickle

StateDict unpickle_state_dict(std::string_view program, const std::string& file,
                              const StorageLoader& load_storage) {
  return pickle::Machine(program, file, load_storage).run();
}

}  // namespace oslo
