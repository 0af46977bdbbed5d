#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

// The library's readers of files that nobody vouches for, as what a fuzzer calls: one input each.
namespace oslo::fuzz {

/// Reads `input`, and all that is in it. Whatever the input, it returns or throws `Error`; another
/// exception, a crash, or memory out of proportion is a defect of the reader.
using Reader = std::function<void(std::string_view input)>;

/// By name:
///   safetensors       a .safetensors file
///   torch_bin         a .bin file of Python's torch.save
///   pickle            the pickle in such a file, whose storages are there
///   json              a configuration's text, which is also written again
///   checkpoint_index  oslo_checkpoint.json, under a checksum that fits
///   exported_program  models/model.json of a .pt2 file, whose other records are a perceptron's
const std::map<std::string, Reader>& readers();

}  // namespace oslo::fuzz
