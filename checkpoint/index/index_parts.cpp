#include "checkpoint/index/index_parts.h"

#include <memory>

#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"

namespace oslo {
namespace {

using Json = nlohmann::json;

/// [[1, 27], [2, 26]] of 27, 26, 26.
Json counted(const Cut::Sizes& pieces) {
  Json list = Json::array();
  for (size_t i = 0; i < pieces.size();) {
    size_t end = i + 1;
    while (end < pieces.size() && pieces[end] == pieces[i]) ++end;
    list.push_back({end - i, pieces[i]});
    i = end;
  }
  return list;
}

/// Keeps of dimension `dim` what `cut` leaves `rank`. Throws where it is no cut of what is there.
void apply(const CheckpointIndex::PartCut& part, c10::SmallVectorImpl<int64_t>& sizes,
           const JsonNode& where) {
  OSLO_CHECK_AS(file, part.dim >= 0 && part.dim < static_cast<int64_t>(sizes.size()), where.where(),
                " cuts dimension ", part.dim, " of a tensor of ", sizes.size(), " dimensions");
  OSLO_CHECK_AS(file, part.cut->size() == sizes[part.dim], where.where(), " cuts ",
                part.cut->size(), " of the ", sizes[part.dim], " elements of the dimension");
  OSLO_CHECK_AS(file, part.rank < part.cut->ranks(), where.where(), " is rank ", part.rank, " of ",
                part.cut->ranks());
  sizes[part.dim] = part.cut->local_size(part.rank);
}

}  // namespace

size_t IndexTables::number_of(const CutPtr& cut) {
  const auto known = cuts_by_address_.find(cut.get());
  if (known != cuts_by_address_.end()) return known->second;
  Json runs = Json::array();
  for (const Cut::Run& run : cut->runs()) {
    runs.push_back({{"repeat", run.repeat}, {"pieces", counted(run.pieces)}});
  }
  const auto [number, fresh] = cuts_by_contents_.emplace(runs.dump(), cuts_.size());
  if (fresh) {
    cuts_.push_back(std::move(runs));
    pieces_ += cut->runs().size() * static_cast<size_t>(cut->ranks());
    OSLO_CHECK_AS(file, pieces_ <= limits_.pieces, "its cuts have more than the ", limits_.pieces,
                  " pieces that are read at most");
  }
  cuts_by_address_.emplace(cut.get(), number->second);
  kept_.push_back(cut);
  return number->second;
}

size_t IndexTables::number_of(const FileName& file) {
  return files_.emplace(file.text(), files_.size()).first->second;
}

void IndexTables::add(const CheckpointIndex::Tensor& tensor, Json& entry) {
  parts_ += tensor.parts.size();
  OSLO_CHECK_AS(file, parts_ <= limits_.parts, "its tensors lie in more than the ", limits_.parts,
                " parts that are read at most");
  // Those of the tensor, as dimension and number: mostly one or two.
  std::vector<std::pair<int64_t, size_t>> own;
  const auto own_number = [&](const CheckpointIndex::PartCut& part) {
    const std::pair<int64_t, size_t> cut(part.dim, number_of(part.cut));
    size_t i = 0;
    while (i < own.size() && own[i] != cut) ++i;
    if (i == own.size()) own.push_back(cut);
    return i;
  };
  std::string key;
  std::vector<size_t> numbers;  // of the cuts of all parts, one after the other
  for (const CheckpointIndex::Part& part : tensor.parts) {
    key += std::to_string(number_of(part.file));
    for (const CheckpointIndex::PartCut& cut : part.cuts) {
      numbers.push_back(own_number(cut));
      key += ' ' + std::to_string(numbers.back()) + ' ' + std::to_string(cut.rank);
    }
    key += ',';
  }
  const auto [number, fresh] = places_by_contents_.emplace(std::move(key), places_.size());
  if (fresh) {
    Json list = Json::array();
    size_t next = 0;
    for (const CheckpointIndex::Part& part : tensor.parts) {
      Json place = Json::array({part.file.text()});
      for (const CheckpointIndex::PartCut& cut : part.cuts) {
        place.push_back(numbers[next++]);
        place.push_back(cut.rank);
      }
      list.push_back(std::move(place));
    }
    places_.push_back(std::move(list));
  }
  if (!own.empty()) entry["cuts"] = own;
  entry["places"] = number->second;
}

IndexParts::IndexParts(const JsonNode& root, int64_t version, const Files& files,
                       const IndexLimits& limits)
    : version_(version), files_(files), limits_(limits) {
  if (version == 1) return;
  for (const JsonNode& runs : root["cuts"].list())
    cuts_.push_back(read_cut(runs, /*in_counts=*/true));
  for (const JsonNode& list : root["places"].list()) {
    std::vector<Place>& places = places_.emplace_back();
    for (const JsonNode& item : list.list()) {
      const std::vector<JsonNode> words = item.list();
      OSLO_CHECK_AS(file, words.size() % 2 == 1, item.where(),
                    " is no file with a number and a rank for each cut");
      Place place{file_of(words.front(), item), {}};
      for (size_t i = 1; i < words.size(); i += 2) {
        place.cuts.emplace_back(static_cast<size_t>(words[i].number()), words[i + 1].count());
      }
      places.push_back(std::move(place));
    }
  }
}

FileName IndexParts::file_of(const JsonNode& name, const JsonNode& where) {
  const std::string file = name.text();
  OSLO_CHECK_AS(file, files_.count(file) > 0, where.where(), " lies in '", printable(file),
                "', which is not listed");
  return names_.try_emplace(file, file).first->second;
}

CutPtr IndexParts::read_cut(const JsonNode& node, bool in_counts) {
  Cut::Runs runs;
  int64_t size = 0;
  for (const JsonNode& item : node.list()) {
    const int64_t repeat = item["repeat"].number();
    Cut::Sizes pieces;
    const auto append = [&](int64_t count, int64_t piece) {
      OSLO_CHECK_AS(file, static_cast<size_t>(count) <= limits_.pieces - pieces_, node.where(),
                    ": the cuts have more than the ", limits_.pieces,
                    " pieces that are read at most");
      pieces_ += static_cast<size_t>(count);
      pieces.append(static_cast<size_t>(count), piece);
      int64_t more = 0;
      OSLO_CHECK_AS(file,
                    !__builtin_mul_overflow(count, piece, &more) &&
                        !__builtin_mul_overflow(more, repeat, &more) &&
                        !__builtin_add_overflow(size, more, &size),
                    node.where(), " cuts more elements than a dimension has");
    };
    for (const JsonNode& piece : item["pieces"].list()) {
      if (!in_counts) {
        append(1, piece.number());
        continue;
      }
      const std::vector<int64_t> pair = piece.numbers();
      OSLO_CHECK_AS(file, pair.size() == 2, piece.where(),
                    " is not how many ranks have how many elements");
      append(pair[0], pair[1]);
    }
    OSLO_CHECK_AS(file,
                  repeat >= 1 && !pieces.empty() &&
                      (runs.empty() || runs.front().pieces.size() == pieces.size()),
                  item.where(), " has no pieces, or another number of them than the run before");
    runs.push_back({repeat, std::move(pieces)});
  }
  OSLO_CHECK_AS(file, !runs.empty(), node.where(), " has no runs");
  return std::make_shared<const Cut>(std::move(runs));
}

std::vector<CheckpointIndex::Part> IndexParts::of(const JsonNode& tensor,
                                                  const std::vector<int64_t>& shape) {
  if (version_ == 1) return read_first_version(tensor, shape);
  std::vector<std::pair<int64_t, CutPtr>> own;
  if (tensor.has("cuts")) {
    for (const JsonNode& cut : tensor["cuts"].list()) {
      const std::vector<int64_t> pair = cut.numbers();
      OSLO_CHECK_AS(file, pair.size() == 2 && pair[1] < static_cast<int64_t>(cuts_.size()),
                    cut.where(), " is not a dimension and the number of one of ", cuts_.size(),
                    " cuts");
      own.emplace_back(pair[0], cuts_[static_cast<size_t>(pair[1])]);
    }
  }
  const auto number = static_cast<size_t>(tensor["places"].number());
  OSLO_CHECK_AS(file, number < places_.size(), tensor.where(), " lies at places ", number, " of ",
                places_.size());
  const std::vector<Place>& places = places_[number];
  OSLO_CHECK_AS(file, !places.empty(), tensor.where(), " has no parts");
  OSLO_CHECK_AS(file, places.size() <= limits_.parts - parts_, tensor.where(),
                ": the tensors lie in more than the ", limits_.parts,
                " parts that are read at most");
  parts_ += places.size();
  std::vector<CheckpointIndex::Part> parts;
  parts.reserve(places.size());
  c10::SmallVector<int64_t, 8> sizes;
  for (const Place& place : places) {
    sizes.assign(shape.begin(), shape.end());
    CheckpointIndex::Part& part = parts.emplace_back(CheckpointIndex::Part{place.file, {}});
    for (const auto& [which, rank] : place.cuts) {
      OSLO_CHECK_AS(file, which < own.size(), tensor.where(), " has ", own.size(),
                    " cuts, and a part of it is made by number ", which);
      part.cuts.push_back({own[which].first, rank, own[which].second});
      apply(part.cuts.back(), sizes, tensor);
    }
  }
  return parts;
}

std::vector<CheckpointIndex::Part> IndexParts::read_first_version(
    const JsonNode& tensor, const std::vector<int64_t>& shape) {
  std::vector<CheckpointIndex::Part> parts;
  for (const JsonNode& item : tensor["parts"].list()) {
    CheckpointIndex::Part part{file_of(item["file"], item), {}};
    c10::SmallVector<int64_t, 8> sizes(shape.begin(), shape.end());
    for (const JsonNode& cut : item["cuts"].list()) {
      part.cuts.push_back(
          {cut["dim"].number(), cut["rank"].count(), read_cut(cut["runs"], /*in_counts=*/false)});
      apply(part.cuts.back(), sizes, cut);
    }
    parts.push_back(std::move(part));
  }
  OSLO_CHECK_AS(file, !parts.empty(), tensor.where(), " has no parts");
  return parts;
}

}  // namespace oslo
