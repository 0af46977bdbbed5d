#include "checkpoint/formats/torch_bin/torch_bin.h"

#include <ATen/ATen.h>
#include <caffe2/serialize/inline_container.h>
#include <gtest/gtest.h>

#include <map>
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

const std::filesystem::path kData = std::filesystem::path(OSLO_SOURCE_DIR) / "tests/data";

bool share_storage(const at::Tensor& a, const at::Tensor& b) {
  return a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

class TorchBinTest : public ::testing::Test {
 protected:
  /// Writes an archive of these records, as a stranger would.
  void write_archive(const std::map<std::string, std::string>& records) {
    caffe2::serialize::PyTorchStreamWriter archive(path_.string());
    for (const auto& [name, bytes] : records) {
      archive.writeRecord(name, bytes.data(), bytes.size());
    }
    archive.writeEndOfFile();
  }
  /// Expects reading to be refused with a message of the file and these words.
  void expect_refused(const std::vector<std::string>& words) {
    const std::string message = error_of([&] { read_torch_bin(path_); });
    EXPECT_NE(message.find("model.bin"), std::string::npos) << message;
    expect_contains(message, words);
  }
  /// The same for an archive around the pickle `body`, whose storage "0" has eight bytes.
  void expect_pickle_refused(const std::string& body, const std::vector<std::string>& words) {
    write_archive({{"data.pkl", "\x80\x02" + body + "."}, {"data/0", std::string(8, '\2')}});
    expect_refused(words);
  }

  TemporaryDirectory folder_;
  const std::filesystem::path path_ = folder_ / "model.bin";
};

/// Pieces of pickles, spelled as `torch.save` spells them.
std::string text(const std::string& value) {
  const auto length = static_cast<uint32_t>(value.size());
  return "X" + std::string(reinterpret_cast<const char*>(&length), 4) + value;
}
std::string number(int64_t value) {
  return "\x8a\x08" + std::string(reinterpret_cast<const char*>(&value), 8);
}
std::string global(const std::string& module, const std::string& name) {
  return "c" + module + "\n" + name + "\n";
}
std::string storage(int64_t count, const std::string& type = "FloatStorage",
                    const std::string& key = "0") {
  return "(" + text("storage") + global("torch", type) + text(key) + text("cuda:3") +
         number(count) + "tQ";
}
std::string tensor(const std::string& from, int64_t offset, const std::vector<int64_t>& size,
                   const std::vector<int64_t>& stride) {
  std::string sizes = "(";
  for (const int64_t n : size) {
    sizes += number(n);
  }
  std::string strides = "(";
  for (const int64_t n : stride) {
    strides += number(n);
  }
  return global("torch._utils", "_rebuild_tensor_v2") + "(" + from + number(offset) + sizes + "t" +
         strides + "t\x89" + global("collections", "OrderedDict") + ")RtR";
}
std::string dict(const std::string& value) {
  return "}" + text("w") + value + "s";
}

TEST_F(TorchBinTest, ReadsWhatPythonSaved) {
  const StateDict state = read_torch_bin(kData / "python_state_dict.bin");
  std::vector<std::string> names;
  for (const auto& [name, value] : state) {
    names.push_back(name);
    EXPECT_FALSE(value.requires_grad());
  }
  EXPECT_EQ(names,
            (std::vector<std::string>{"bf16", "view", "mask", "step", "empty", "embed.weight",
                                      "head.weight", "head.bias", "parameter"}));
  EXPECT_TRUE(at::equal(state.at("embed.weight"), at::arange(12, at::kFloat).view({4, 3}) / 8));
  EXPECT_TRUE(share_storage(state.at("embed.weight"), state.at("head.weight")));
  EXPECT_TRUE(at::equal(state.at("head.weight"), state.at("embed.weight")));
  EXPECT_TRUE(at::equal(state.at("head.bias"), at::tensor({1.f, -2.f, 3.f, -4.f})));
  EXPECT_TRUE(at::equal(state.at("bf16"), at::arange(6, at::kBFloat16).view({2, 3})));
  EXPECT_TRUE(
      at::equal(state.at("view"), at::arange(24, at::kLong).view({4, 6}).t().slice(0, 1, 5, 2)));
  EXPECT_EQ(state.at("view").strides(), (std::vector<int64_t>{2, 6}));
  EXPECT_TRUE(at::equal(state.at("mask"), at::tensor({1, 0, 1}).to(at::kBool)));
  EXPECT_EQ(state.at("step").item<double>(), 7.5);
  EXPECT_EQ(state.at("empty").sizes(), (std::vector<int64_t>{0, 5}));
  EXPECT_EQ(state.at("empty").scalar_type(), at::kHalf);
  EXPECT_TRUE(at::equal(state.at("parameter"), at::tensor({0.5f, 0.25f})));
}

TEST_F(TorchBinTest, ReadsUntypedStoragesOfPython) {
  const StateDict state = read_torch_bin(kData / "python_float8.bin");
  EXPECT_EQ(state.at("f8").scalar_type(), at::kFloat8_e4m3fn);
  EXPECT_TRUE(at::equal(state.at("f8").to(at::kFloat), at::tensor({1.f, -2.f})));
  EXPECT_EQ(state.at("u16").scalar_type(), at::kUInt16);
  EXPECT_TRUE(at::equal(state.at("u16").to(at::kLong), at::tensor({1, 65535}, at::kLong)));
}

TEST_F(TorchBinTest, EveryDtypeComesBackBitForBit) {
  const StateDict state = checkpoint_test::every_dtype({at::kComplexDouble});
  write_torch_bin(path_, state);
  checkpoint_test::expect_bit_for_bit(read_torch_bin(path_), state);
}

TEST_F(TorchBinTest, SharingAndStridesSurvive) {
  const at::Tensor base = at::arange(1000, at::kFloat).view({10, 100});
  const at::Tensor conjugate = at::view_as_complex(at::arange(4, at::kFloat).view({2, 2})).conj();
  write_torch_bin(path_, {{"left", base.slice(1, 10, 20).slice(0, 2, 4)},
                          {"transposed", base.t().slice(0, 15, 30).slice(1, 3, 5)},
                          {"tied", base.slice(0, 2, 3)},
                          {"alone", at::zeros({1000}).slice(0, 0, 2)},
                          {"empty", at::zeros({0, 3})},
                          {"empty view", base.slice(0, 9, 9)},
                          {"scalar", at::scalar_tensor(2, at::kLong)},
                          {"conjugate", conjugate},
                          {"as ints", base.view(at::kInt).slice(0, 9)},
                          {"learned", at::ones({2}).requires_grad_()}});
  const StateDict back = read_torch_bin(path_);
  EXPECT_TRUE(at::equal(back.at("left"), base.slice(1, 10, 20).slice(0, 2, 4)));
  EXPECT_TRUE(at::equal(back.at("transposed"), base.t().slice(0, 15, 30).slice(1, 3, 5)));
  EXPECT_EQ(back.at("transposed").strides(), base.t().strides());
  EXPECT_TRUE(share_storage(back.at("left"), back.at("tied")));
  EXPECT_TRUE(share_storage(back.at("left"), back.at("transposed")));
  // Elements 200 to 429 of the storage are reached, and the file has no others.
  EXPECT_EQ(back.at("left").storage().nbytes(), 4u * 230);
  EXPECT_EQ(back.at("alone").storage().nbytes(), 4u * 2);
  EXPECT_EQ(back.at("empty").sizes(), (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(back.at("empty view").sizes(), (std::vector<int64_t>{0, 100}));
  EXPECT_EQ(back.at("scalar").item<int64_t>(), 2);
  EXPECT_TRUE(at::equal(back.at("conjugate"), conjugate.resolve_conj()));
  EXPECT_TRUE(at::equal(back.at("as ints"), base.view(at::kInt).slice(0, 9)));
  EXPECT_FALSE(back.at("learned").requires_grad());
  back.at("tied").fill_(-1);
  EXPECT_EQ(back.at("left")[0][0].item<float>(), -1);
}

TEST_F(TorchBinTest, EqualStatesGiveEqualFiles) {
  const StateDict state = {{"a", at::ones({3})}, {"b", at::ones({2}, at::kDouble)}};
  write_torch_bin(path_, state);
  write_torch_bin(folder_ / "other", {{"a", at::ones({3})}, {"b", at::ones({2}, at::kDouble)}});
  EXPECT_EQ(contents(path_), contents(folder_ / "other"));
  write_torch_bin(path_, {});
  EXPECT_TRUE(read_torch_bin(path_).empty());
}

TEST_F(TorchBinTest, WhatCannotBeWrittenIsNamed) {
  const auto refused = [&](const at::Tensor& value) {
    const std::string message = error_of([&] { write_torch_bin(path_, {{"layer.w", value}}); });
    EXPECT_NE(message.find("'layer.w'"), std::string::npos) << message;
  };
  refused(at::empty({2}, at::TensorOptions(at::kMeta)));
  refused(at::ones({2, 2}).to_sparse());
  refused(at::quantize_per_tensor(at::ones({2}), 0.1, 0, at::kQInt8));
  EXPECT_FALSE(std::filesystem::exists(path_));
  const std::string message = error_of([] {
    write_torch_bin("/dev/full", {{"a", at::ones({1})}});
  });
  EXPECT_NE(message.find("No space left"), std::string::npos) << message;
}

TEST_F(TorchBinTest, PickledByHandIsRead) {
  write_archive({{"data.pkl", "\x80\x02" + dict(tensor(storage(2), 1, {}, {})) + "."},
                 {"data/0", std::string("\0\0\0\0\0\0\x80\x3f", 8)}});
  EXPECT_EQ(read_torch_bin(path_).at("w").item<float>(), 1);
}

TEST_F(TorchBinTest, NamesThatNoStateNeedsAreRefused) {
  expect_pickle_refused(global("os", "system") + "(" + text("true") + "tR", {"os.system"});
  expect_pickle_refused(global("builtins", "eval") + "(" + text("1") + "tR", {"builtins.eval"});
  expect_pickle_refused(global("torch", "load") + "(" + text("x") + "tR", {"torch.load"});
  expect_pickle_refused(global("torch", "float32") + ")R", {"dtype"});
  expect_pickle_refused("}i", {"operation 105"});  // INST
  expect_pickle_refused(")" + global("collections", "OrderedDict") + "\x81", {"operation 129"});
}

TEST_F(TorchBinTest, TensorsOutsideTheirStorageAreRefused) {
  expect_pickle_refused(dict(tensor(storage(2), 0, {3}, {1})), {"does not fit", "2 elements"});
  expect_pickle_refused(dict(tensor(storage(2), 2, {1}, {1})), {"does not fit"});
  expect_pickle_refused(dict(tensor(storage(2), -1, {1}, {1})), {"does not fit"});
  expect_pickle_refused(dict(tensor(storage(2), 0, {2, 2}, {1, 1})), {"does not fit"});
  expect_pickle_refused(dict(tensor(storage(2), 0, {-1}, {1})), {"-1"});
  expect_pickle_refused(dict(tensor(storage(2), 0, {2}, {-1})), {"-1"});
  expect_pickle_refused(dict(tensor(storage(2), 0, {2}, {})), {"1 sizes and 0 strides"});
  expect_pickle_refused(dict(tensor(storage(2), 0, {3}, {int64_t{1} << 62})), {"does not fit"});
  expect_pickle_refused(dict(tensor(storage(2), 0, {INT64_MAX, 4}, {0, 0})), {"does not fit"});
  expect_pickle_refused(dict(tensor(storage(3), 0, {1}, {1})), {"'0'", "12 bytes", "has 8"});
  expect_pickle_refused(dict(tensor(storage(-2), 0, {1}, {1})), {"'0'", "-2"});
  expect_pickle_refused(dict(tensor(storage(2, "FloatStorage", "7"), 0, {1}, {1})),
                        {"lacks the storage '7'"});
  expect_pickle_refused(dict(tensor(storage(8, "BoolStorage"), 0, {1}, {1})), {"'0'", "bools"});
  expect_pickle_refused(dict(tensor(storage(2, "QInt8Storage"), 0, {1}, {1})), {"QInt8Storage"});
}

TEST_F(TorchBinTest, WhatIsNoStateIsRefused) {
  expect_pickle_refused("}" + text("epoch") + number(3) + "s", {"'epoch'", "a number"});
  expect_pickle_refused("}" + text("model") + "}s", {"'model'", "a dict"});
  expect_pickle_refused("]", {"a list"});
  const std::string good = tensor(storage(2), 0, {2}, {1});
  expect_pickle_refused("}(" + text("w") + good + text("w") + good + "u", {"'w'", "twice"});
  expect_pickle_refused("}" + number(1) + good + "s", {"a number", "name"});
}

TEST_F(TorchBinTest, BrokenPicklesAreRefused) {
  for (const char* body :
       {"", "u", "s", "R", "Q", "t", "\x85", "h\x01", "}(Nu", "Nb", "(.", "a", "}}u",
        "X\xff\xff\xff\x7f"
        "a",
        "c", "\x8a\x09"}) {
    expect_pickle_refused(body, {});
  }
  // A list that holds itself is no reason to hang or to leak.
  expect_pickle_refused(
      "]q\x01h\x01"
      "a",
      {"a list"});
  write_archive({{"data.pkl", "\x80\x04}."}});
  expect_refused({"protocol 4"});
}

TEST_F(TorchBinTest, OtherFilesAreRefused) {
  EXPECT_NE(error_of([&] { read_torch_bin(folder_ / "absent"); }).find("absent"),
            std::string::npos);
  write_contents(path_, "");
  expect_refused({"not a file of torch.save"});
  write_contents(path_, "\x80\x02\x8a\x0al\xfc\x9c");
  expect_refused({"before 2020"});
  write_archive({{"weights", "x"}});
  expect_refused({"data.pkl"});
  write_archive({{"data.pkl", "\x80\x02}."}, {"constants.pkl", "x"}});
  expect_refused({"TorchScript"});
  write_archive({{"data.pkl", "\x80\x02}."}, {"byteorder", "big"}});
  expect_refused({"big-endian"});
}

TEST_F(TorchBinTest, ADamagedFileIsRefusedOrTheSame) {
  const StateDict state = {{"a", at::ones({3})}, {"b", at::ones({2, 2}, at::kLong)}};
  write_torch_bin(path_, state);
  const std::string whole = contents(path_);
  size_t refused = 0;
  for (size_t length = 0; length < whole.size(); length += 7) {
    write_contents(path_, whole.substr(0, length));
    expect_refused({});
  }
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const int mask : {0x01, 0x80}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(damaged[at] ^ mask);
      write_contents(path_, damaged);
      try {
        checkpoint_test::expect_bit_for_bit(read_torch_bin(path_), state);
      } catch (const Error&) {
        // Refused, which is what all bytes under a checksum end in.
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 300u);
}

// torch.serialization.set_crc32_options(False) writes zeros for all checksums.
TEST_F(TorchBinTest, FilesSavedWithoutChecksumsAreRead) {
  {
    caffe2::serialize::PyTorchStreamWriter archive(path_.string(), /*compute_crc32=*/false);
    const std::string program = "\x80\x02" + dict(tensor(storage(2), 1, {}, {})) + ".";
    archive.writeRecord("data.pkl", program.data(), program.size());
    archive.writeRecord("data/0", "\0\0\0\0\0\0\x80\x3f", 8);
    archive.writeEndOfFile();
  }
  EXPECT_EQ(read_torch_bin(path_).at("w").item<float>(), 1);
}

// torch.save compresses nothing, so what is compressed is no checkpoint but perhaps a bomb.
TEST_F(TorchBinTest, CompressedRecordsAreRefused) {
  const std::string program = "\x80\x02" + dict(tensor(storage(4'000), 0, {4'000}, {1})) + ".";
  const std::string zeros(16'000, '\0');
  for (const char* compressed : {"data.pkl", "data/0", ".data/version"}) {
    {
      caffe2::serialize::PyTorchStreamWriter archive(path_.string());
      const auto write = [&](const std::string& name, const std::string& bytes) {
        archive.writeRecord(name, bytes.data(), bytes.size(), name == compressed);
      };
      write("data.pkl", program);
      write("data/0", zeros);
      write(".data/version", compressed == std::string("data/0") ? "3\n" : zeros);
      archive.writeEndOfFile();
    }
    expect_refused({compressed, "compressed"});
  }
}

TEST_F(TorchBinTest, ProgramsThatGrowAreRefused) {
  const std::string slot("q\0", 2), recall("h\0", 2);
  // A long text recalled again and again is there once.
  std::string many;
  for (int i = 0; i < 30'000; ++i) many += recall;
  expect_pickle_refused(text(std::string(1 << 20, 'x')) + slot + "(" + many + "t", {"a list"});
  expect_pickle_refused("(" + std::string(5'000'000, 'N') + "t", {"values"});
  expect_pickle_refused(std::string(5'000'000, '('), {"values"});
  // So is a long list of sizes.
  const std::vector<int64_t> ones(1'000, 1);
  expect_pickle_refused(dict(tensor(storage(2), 0, ones, ones)), {"1000 dimensions"});
}

TEST_F(TorchBinTest, MessagesShowWhatCannotBePrinted) {
  const std::string nul("\0", 1);
  expect_pickle_refused("}" + text("a" + nul + "b") + number(3) + "s", {"a\\u0000b", "a number"});
  expect_pickle_refused("}" + text("a" + nul + "b") + tensor(storage(2), 0, {2}, {1}) + "s",
                        {"a\\u0000b", "NUL"});
  expect_pickle_refused(global("os" + nul, std::string(5'000, 'x')), {"os\\u0000.x", "..."});
}

}  // namespace
}  // namespace oslo
