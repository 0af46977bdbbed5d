#include "checkpoint/formats/safetensors.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/checkpoint_files_test/every_dtype.h"
#include "tests/support/error_of.h"
#include "tests/support/files.h"
#include "tests/support/temporary_directory.h"

namespace oslo {
namespace {

using ::oslo::test::contents;
using ::oslo::test::error_of;
using ::oslo::test::expect_contains;
using ::oslo::test::TemporaryDirectory;
using ::oslo::test::write_contents;

/// A file of `header` and `data`, right or wrong.
std::string file_of(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  std::string bytes(reinterpret_cast<const char*>(&length), sizeof length);
  return bytes + header + data;
}

class SafetensorsTest : public ::testing::Test {
 protected:
  /// What reading a file of these bytes is refused with; the message always names the file.
  std::string refusal(const std::string& bytes) {
    write_contents(path_, bytes);
    const std::string message = error_of([&] { read_safetensors(path_); });
    EXPECT_NE(message.find("model.safetensors"), std::string::npos) << message;
    return message;
  }
  void expect_refused(const std::string& bytes, const std::vector<std::string>& words) {
    const std::string message = refusal(bytes);
    expect_contains(message, words);
  }

  TemporaryDirectory folder_;
  const std::filesystem::path path_ = folder_ / "model.safetensors";
};

TEST_F(SafetensorsTest, EveryDtypeComesBackBitForBit) {
  const StateDict state = checkpoint_test::every_dtype();
  write_safetensors(path_, state);
  checkpoint_test::expect_bit_for_bit(read_safetensors(path_), state);
}

// The bytes as the format's specification spells them, so that a change of both our sides shows.
TEST_F(SafetensorsTest, TheFileIsWhatTheFormatSays) {
  const at::Tensor weight = at::arange(4, at::kFloat).reshape({2, 2});
  write_safetensors(path_, {{"b", at::tensor({7}, at::kByte)}, {"a", weight}}, {{"k", "v"}});
  std::string header = R"({"__metadata__":{"format":"pt","k":"v"},)"
                       R"("a":{"data_offsets":[0,16],"dtype":"F32","shape":[2,2]},)"
                       R"("b":{"data_offsets":[16,17],"dtype":"U8","shape":[1]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const std::string data(static_cast<const char*>(weight.const_data_ptr()), 16);
  EXPECT_EQ(contents(path_), file_of(header, data + '\x07'));
}

TEST_F(SafetensorsTest, StridedEmptyScalarAndTiedTensors) {
  const at::Tensor base = at::arange(12, at::kFloat).reshape({3, 4});
  const at::Tensor conjugate =
      at::view_as_complex(at::arange(4, at::kFloat).reshape({2, 2})).conj();
  write_safetensors(path_, {{"transposed", base.t()},
                            {"column", base.select(1, 2)},
                            {"empty", at::zeros({0, 5})},
                            {"scalar", at::scalar_tensor(2.5, at::kDouble)},
                            {"tied", base},
                            {"also tied", base},
                            {"conjugate", conjugate},
                            {"learned", at::ones({2}).requires_grad_()}});
  const StateDict back = read_safetensors(path_);
  EXPECT_TRUE(at::equal(back.at("transposed"), base.t()));
  EXPECT_TRUE(at::equal(back.at("column"), base.select(1, 2)));
  EXPECT_EQ(back.at("empty").sizes(), (std::vector<int64_t>{0, 5}));
  EXPECT_EQ(back.at("scalar").item<double>(), 2.5);
  EXPECT_EQ(back.at("scalar").dim(), 0);
  EXPECT_TRUE(at::equal(back.at("tied"), base));
  EXPECT_TRUE(at::equal(back.at("also tied"), base));
  EXPECT_TRUE(at::equal(back.at("conjugate"), conjugate.resolve_conj()));
  EXPECT_FALSE(back.at("learned").requires_grad());
}

TEST_F(SafetensorsTest, EqualStatesGiveEqualFilesInAnyOrder) {
  const at::Tensor a = at::ones({3});
  const at::Tensor b = at::ones({2}, at::kDouble);
  write_safetensors(path_, {{"a", a}, {"b", b}});
  write_safetensors(folder_ / "other", {{"b", b}, {"a", a}});
  EXPECT_EQ(contents(path_), contents(folder_ / "other"));
}

TEST_F(SafetensorsTest, TensorsAreReadOneByOne) {
  write_safetensors(path_,
                    {{"x", at::arange(6, at::kInt).reshape({2, 3})}, {"y\n\"ü", at::ones({1})}},
                    {{"format", "flax"}});
  const SafetensorsFile file(path_);
  EXPECT_EQ(file.keys(), (std::vector<std::string>{"x", "y\n\"ü"}));
  EXPECT_EQ(file.shape("x"), (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(file.dtype("x"), at::kInt);
  EXPECT_TRUE(at::equal(file.read("x"), at::arange(6, at::kInt).reshape({2, 3})));
  EXPECT_EQ(file.metadata(), (SafetensorsMetadata{{"format", "flax"}}));
  const std::string message = error_of([&] { file.read("z"); });
  EXPECT_NE(message.find("no tensor 'z'"), std::string::npos) << message;
}

TEST_F(SafetensorsTest, AStateWithoutTensors) {
  write_safetensors(path_, StateDict());
  EXPECT_TRUE(read_safetensors(path_).empty());
}

TEST_F(SafetensorsTest, WhatCannotBeWrittenIsNamed) {
  const auto refused = [&](const std::string& name, const at::Tensor& tensor) {
    const std::string message = error_of([&] { write_safetensors(path_, {{name, tensor}}); });
    EXPECT_NE(message.find("'" + name + "'"), std::string::npos) << message;
    return message;
  };
  EXPECT_NE(refused("c", at::ones({2}, at::kComplexDouble)).find("ComplexDouble"),
            std::string::npos);
  EXPECT_NE(refused("m", at::empty({2}, at::TensorOptions(at::kMeta))).find("meta"),
            std::string::npos);
  refused("s", at::ones({2, 2}).to_sparse());
  refused("__metadata__", at::ones({1}));
  EXPECT_NE(error_of([&] {
              write_safetensors(path_, {{"\xff", at::ones({1})}});
            }).find("not valid UTF-8"),
            std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(path_));
  const std::string message = error_of([&] {
    write_safetensors(folder_ / "absent/file", {{"a", at::ones({1})}});
  });
  EXPECT_NE(message.find("absent/file"), std::string::npos) << message;
  // A disk that is full from the first byte.
  EXPECT_NE(error_of([&] {
              write_safetensors("/dev/full", {{"a", at::ones({1})}});
            }).find("No space left"),
            std::string::npos);
}

TEST_F(SafetensorsTest, NamesAppearOnce) {
  EXPECT_NE(error_of([] {
              StateDict({{"w", at::ones({1})}, {"w", at::ones({1})}});
            }).find("'w' appears twice"),
            std::string::npos);
}

TEST_F(SafetensorsTest, AFileCutAnywhereIsRefused) {
  write_safetensors(path_, {{"a", at::ones({3})}, {"b", at::ones({2, 2}, at::kLong)}});
  const std::string whole = contents(path_);
  for (size_t length = 0; length < whole.size(); ++length) {
    refusal(whole.substr(0, length));
  }
  expect_refused(whole.substr(0, whole.size() - 1), {"44 bytes", "43", "cut"});
  expect_refused(whole + "x", {"44 bytes", "45", "1 belong to no tensor"});
}

// A flipped bit in the header either breaks a rule, or leaves names, dtypes of one width or
// metadata changed, which only a hash can see; it never reads outside the file.
TEST_F(SafetensorsTest, ADamagedHeaderNeverCrashes) {
  write_safetensors(path_, {{"a", at::ones({3})}, {"b", at::ones({2, 2}, at::kBool)}});
  const std::string whole = contents(path_);
  const size_t header = whole.size() - 16;
  size_t refused = 0;
  for (size_t bit = 0; bit < 8 * header; ++bit) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    write_contents(path_, damaged);
    try {
      read_safetensors(path_);
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 4 * header);
}

TEST_F(SafetensorsTest, HeadersThatLie) {
  const std::string data(8, '\0');
  const auto tensor = [](const std::string& shape, const std::string& offsets,
                         const std::string& dtype = "\"F32\"") {
    return "{\"dtype\":" + dtype + ",\"shape\":" + shape + ",\"data_offsets\":" + offsets + "}";
  };
  const auto refused = [&](const std::string& header, const std::vector<std::string>& words) {
    expect_refused(file_of(header, data), words);
  };
  refused("{\"w\":" + tensor("[3]", "[0,8]") + "}", {"'w'", "[3]", "8 bytes"});
  refused("{\"w\":" + tensor("[2]", "[8,0]") + "}", {"'w'", "[8,0]"});
  refused("{\"w\":" + tensor("[2]", "[0,8,9]") + "}", {"'w'", "data_offsets"});
  refused("{\"w\":" + tensor("[-2]", "[0,8]") + "}", {"'w'", "-2"});
  refused("{\"w\":" + tensor("[2.0]", "[0,8]") + "}", {"'w'", "2.0"});
  refused("{\"w\":" + tensor("[2]", "[0,18446744073709551615]") + "}", {"'w'"});
  refused("{\"w\":" + tensor("[2]", "[0,8]", "\"F7\"") + "}", {"'w'", "F7"});
  refused("{\"w\":" + tensor("[2]", "[0,8]", "5") + "}", {"'w'", "dtype"});
  refused("{\"w\":{\"dtype\":\"F32\",\"shape\":[2]}}", {"'w'", "data_offsets"});
  refused("{\"w\":[]}", {"'w'"});
  // 2^62 * 4 elements of 4 bytes are 0 modulo 2^64.
  refused("{\"w\":" + tensor("[4611686018427387904,4]", "[0,0]") + "}", {"'w'"});
  refused("{\"w\":" + tensor("[4611686018427387904,4,0]", "[0,0]") + "}", {"'w'"});
  refused("{\"v\":" + tensor("[1]", "[0,4]") + ",\"w\":" + tensor("[2]", "[0,8]") + "}",
          {"'w'", "overlap"});
  refused("{\"w\":" + tensor("[1]", "[4,8]") + "}", {"'w'", "hole"});
  refused("{\"w\":" + tensor("[3]", "[0,12]") + "}", {"'w'", "12 bytes", "8 follow", "cut"});
  refused("{\"w\":" + tensor("[1]", "[0,4]") + ",\"w\":" + tensor("[1]", "[4,8]") + "}",
          {"duplicate key 'w'"});
  refused(R"({"w":{"dtype":"F32","shape":[2],"shape":[2],"data_offsets":[0,8]}})",
          {"duplicate key 'w.shape'"});
  refused(
      "{\"__metadata__\":{\"format\":3},"
      "\"w\":" +
          tensor("[2]", "[0,8]") + "}",
      {"format", "not a text"});
  refused("[1]", {"does not begin with '{'"});
  refused("{\"w\":" + tensor("[2]", "[0,8]") + "}" + std::string(5, '\0'), {"NUL"});
  refused("{\"a\\u0000b\":" + tensor("[2]", "[0,8]") + "}", {"a\\u0000b", "NUL"});
  refused("{\"w\":" + tensor("[2]", "[0,8]", '"' + std::string(5'000, 'F') + '"') + "}", {"..."});
  refused("{\"w\":" + std::string(200'000, '['), {"nested"});
  refused("{\"w\":", {"not valid JSON"});
  refused("", {"does not begin with '{'"});
  expect_refused(file_of("", "").replace(0, 8, 8, '\x7f'), {"header of"});
  expect_refused(file_of("{\"w\":" + tensor("[2]", "[0,2]", "\"BOOL\"") + "}", "\x01\x02"),
                 {"'w'", "byte 1 is 2"});
}

// The vectors of the reference implementation's own tests (safetensors, tensor.rs).
TEST_F(SafetensorsTest, TheReferencesVectors) {
  const auto i32 = [](const std::string& shape, const std::string& offsets) {
    return R"({"test":{"dtype":"I32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  const std::string zeros(16, '\0');
  const std::string good = "<" + std::string(7, '\0') + i32("[2,2]", "[0,16]") + zeros;
  write_contents(path_, good);
  EXPECT_TRUE(at::equal(read_safetensors(path_).at("test"), at::zeros({2, 2}, at::kInt)));
  expect_refused(good + "extra_bogus_data_for_polyglot_file", {"belong to no tensor"});
  expect_refused(good.substr(0, good.size() - 2), {"cut"});
  expect_refused("<" + std::string(7, '\xff'), {"claims a header"});
  expect_refused("", {"at least 8"});
  expect_refused("<" + std::string(7, '\0'), {"cut"});
  expect_refused(file_of("\xff", ""), {"does not begin with '{'"});
  expect_refused(file_of("{", ""), {"not valid JSON"});
  expect_refused(file_of(" " + i32("[2,2]", "[0,16]"), zeros), {"does not begin with '{'"});
  expect_refused(file_of(i32("[2,2]", "[0,4]"), zeros.substr(0, 4)), {"[2,2]", "4 bytes"});
  expect_refused(file_of(i32("[2,18446744073709551614]", "[0,16]"), zeros), {"'test'"});
  expect_refused(file_of(i32("[2,9223372036854775807]", "[0,16]"), zeros), {"'test'"});
  for (const char* shape : {"[2,0]", "[0]"}) {
    write_contents(path_, file_of(i32(shape, "[0,0]"), ""));
    EXPECT_EQ(read_safetensors(path_).at("test").numel(), 0);
  }
  write_contents(path_, file_of(i32("[]", "[0,4]") + "   ", zeros.substr(0, 4)));
  EXPECT_EQ(read_safetensors(path_).at("test").dim(), 0);
}

// At a cost that is quadratic in the tensors this would take half an hour.
TEST_F(SafetensorsTest, AsManyTensorsAsModelsWithExpertsHave) {
  constexpr int kTensors = 200'000;
  std::string header = "{";
  for (int i = 0; i < kTensors; ++i) {
    header += c10::str(i == 0 ? "" : ",", "\"layers.", i,
                       ".weight\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[", i, ",",
                       i + 1, "]}");
  }
  write_contents(path_, file_of(header + "}", std::string(kTensors, '\7')));
  const SafetensorsFile file(path_);
  EXPECT_EQ(file.keys().size(), size_t{kTensors});
  EXPECT_EQ(file.keys().back(), "layers.199999.weight");
  EXPECT_EQ(file.read("layers.123456.weight").item<int>(), 7);
}

// Lists longer than the values that are read of one tensor.
TEST_F(SafetensorsTest, AHeaderOfOneEndlessList) {
  std::string list = "{\"w\":{\"shape\":[0";
  for (int i = 0; i < 2'000'000; ++i) list += ",0";
  expect_refused(file_of(list + "]}}", ""), {"values"});
}

TEST_F(SafetensorsTest, MissingFilesAndFolders) {
  EXPECT_NE(error_of([&] { read_safetensors(folder_ / "absent"); }).find("absent"),
            std::string::npos);
  EXPECT_NE(error_of([&] { read_safetensors(folder_.path()); }).find("not a regular file"),
            std::string::npos);
}

}  // namespace
}  // namespace oslo
