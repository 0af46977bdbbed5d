#include "checkpoint/formats/torch_bin/stored_zip.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "checkpoint/formats/torch_bin/crc32.h"
#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"

namespace oslo {
namespace {

static_assert(std::endian::native == std::endian::little, "the format has little-endian numbers");

// The layouts are those of PKWARE's APPNOTE.TXT, sections 4.3.7 to 4.3.16 and 4.5.3.
constexpr uint32_t kLocalHeader = 0x04034b50, kEntry = 0x02014b50, kEnd = 0x06054b50;
constexpr uint32_t kWideEnd = 0x06064b50, kWideEndLocator = 0x07064b50;
constexpr uint64_t kLocalHeaderBytes = 30, kEntryBytes = 46, kEndBytes = 22;
constexpr uint64_t kWideEndBytes = 56, kWideEndLocatorBytes = 20;
constexpr uint64_t kLongestComment = UINT16_MAX;
constexpr uint16_t kWideSizes = 1;  // the extra field for sizes above 32 bits
// A million records: more is damage, not a model.
constexpr uint64_t kLargestDirectory = 100'000'000;

/// The number at `offset`, which lies inside `bytes`.
template <typename Number>
Number number_at(std::string_view bytes, size_t offset) {
  Number value = 0;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

/// The next number of the extra field for wide sizes, where `value` says that it stands there.
bool widen(uint64_t& value, std::string_view& wide) {
  if (value != UINT32_MAX) return true;
  if (wide.size() < sizeof value) return false;
  value = number_at<uint64_t>(wide, 0);
  wide.remove_prefix(sizeof value);
  return true;
}

/// The extra field for wide sizes in `extra`; empty where there is none.
std::string_view wide_sizes(std::string_view extra) {
  while (extra.size() >= 4) {
    const auto kind = number_at<uint16_t>(extra, 0);
    const auto bytes = number_at<uint16_t>(extra, 2);
    extra.remove_prefix(4);
    if (kind == kWideSizes) return extra.substr(0, bytes);
    extra.remove_prefix(std::min<size_t>(bytes, extra.size()));
  }
  return {};
}

std::string read_text_at(const InputFile& file, uint64_t bytes, uint64_t offset) {
  std::string text(bytes, '\0');
  file.read(text.data(), bytes, offset);
  return text;
}

}  // namespace

template <typename... Parts>
void StoredZip::refuse(const Parts&... parts) const {
  fail_as(ErrorKind::file, printable_path(file_.path()), " is damaged or cut: ", parts...);
}

StoredZip::StoredZip(InputFile file) : file_(std::move(file)) {
  read_directory(find_directory());
}

StoredZip::Directory StoredZip::find_directory() const {
  const uint64_t tail_bytes = std::min(file_.size(), kEndBytes + kLongestComment);
  const uint64_t tail_begin = file_.size() - tail_bytes;
  const std::string tail = read_text_at(file_, tail_bytes, tail_begin);
  for (size_t at = tail.size() < kEndBytes ? 0 : tail.size() - kEndBytes + 1; at-- > 0;) {
    const auto left = std::string_view(tail).substr(at);
    if (number_at<uint32_t>(left, 0) != kEnd ||
        number_at<uint16_t>(left, 20) != left.size() - kEndBytes) {
      continue;
    }
    const uint64_t end = tail_begin + at;
    if (end >= kWideEndLocatorBytes) {
      const std::string locator =
          read_text_at(file_, kWideEndLocatorBytes, end - kWideEndLocatorBytes);
      if (number_at<uint32_t>(locator, 0) == kWideEndLocator) {
        return read_wide_end(number_at<uint64_t>(locator, 8));
      }
    }
    return {number_at<uint32_t>(left, 16), number_at<uint32_t>(left, 12),
            number_at<uint16_t>(left, 10)};
  }
  refuse("it has no directory of a zip archive at its end");
}

StoredZip::Directory StoredZip::read_wide_end(uint64_t end) const {
  if (file_.size() < kWideEndBytes || end > file_.size() - kWideEndBytes) {
    refuse("the end of its directory lies outside of it");
  }
  const std::string bytes = read_text_at(file_, kWideEndBytes, end);
  if (number_at<uint32_t>(bytes, 0) != kWideEnd) refuse("the end of its directory is not there");
  return {number_at<uint64_t>(bytes, 48), number_at<uint64_t>(bytes, 40),
          number_at<uint64_t>(bytes, 32)};
}

void StoredZip::read_directory(const Directory& directory) {
  if (directory.begin > file_.size() || directory.bytes > file_.size() - directory.begin ||
      directory.bytes > kLargestDirectory) {
    refuse("its directory claims ", directory.bytes, " bytes at byte ", directory.begin);
  }
  records_end_ = directory.begin;
  const std::string bytes = read_text_at(file_, directory.bytes, directory.begin);
  std::string_view left = bytes;
  uint64_t entries = 0;
  for (; !left.empty(); ++entries) left = add(left);
  if (entries != directory.records) {
    refuse("its directory has ", entries, " entries and claims ", directory.records);
  }
}

std::string_view StoredZip::add(std::string_view entries) {
  if (entries.size() < kEntryBytes || number_at<uint32_t>(entries, 0) != kEntry) {
    refuse("its directory holds something that is no entry");
  }
  const auto name_bytes = number_at<uint16_t>(entries, 28);
  const auto extra_bytes = number_at<uint16_t>(entries, 30);
  const uint64_t whole = kEntryBytes + name_bytes + extra_bytes + number_at<uint16_t>(entries, 32);
  if (entries.size() < whole) refuse("its directory ends in the middle of an entry");
  const std::string_view path = entries.substr(kEntryBytes, name_bytes);
  const std::string_view rest = entries.substr(whole);
  if (path.ends_with('/')) return rest;  // a folder of its own

  const size_t slash = path.find('/');
  const std::string folder(path.substr(0, slash == path.npos ? 0 : slash + 1));
  if (records_.empty()) folder_ = folder;
  if (folder.empty() || folder != folder_) {
    refuse("its record ", printable(path), " does not lie in the folder of the others, ",
           printable(folder_));
  }
  const std::string name(path.substr(folder_.size()));
  const auto refuse_record = [&](const auto&... parts) {
    refuse("its record ", printable(name), " ", parts...);
  };
  if ((number_at<uint16_t>(entries, 8) & 1) != 0) refuse_record("is encrypted");
  if (number_at<uint16_t>(entries, 10) != 0) {
    refuse_record("is compressed, which torch.save never does; save it again with it");
  }
  Record record;
  uint64_t packed = number_at<uint32_t>(entries, 20);
  record.size = number_at<uint32_t>(entries, 24);
  record.header = number_at<uint32_t>(entries, 42);
  record.crc = number_at<uint32_t>(entries, 16);
  std::string_view wide = wide_sizes(entries.substr(kEntryBytes + name_bytes, extra_bytes));
  if (!widen(record.size, wide) || !widen(packed, wide) || !widen(record.header, wide)) {
    refuse_record("lacks its size");
  }
  if (packed != record.size) {
    refuse_record("has ", record.size, " bytes stored as ", packed);
  }
  if (record.header > records_end_ || record.size > records_end_ - record.header) {
    refuse_record("claims ", record.size, " bytes at byte ", record.header,
                  ", and the directory begins at ", records_end_);
  }
  has_checksums_ = has_checksums_ || record.crc != 0;
  if (!records_.emplace(name, record).second) refuse_record("is there twice");
  return rest;
}

const StoredZip::Record& StoredZip::record(const std::string& name) const {
  const auto found = records_.find(name);
  if (found == records_.end()) refuse("it has no record ", printable(name));
  return found->second;
}

void StoredZip::read(const std::string& name, void* into) const {
  const Record& wanted = record(name);
  const std::string header = read_text_at(file_, kLocalHeaderBytes, wanted.header);
  const auto name_bytes = number_at<uint16_t>(header, 26);
  if (number_at<uint32_t>(header, 0) != kLocalHeader || number_at<uint16_t>(header, 8) != 0 ||
      read_text_at(file_, name_bytes, wanted.header + kLocalHeaderBytes) != folder_ + name) {
    refuse("its record ", printable(name), " is not where its directory says");
  }
  const uint64_t data =
      wanted.header + kLocalHeaderBytes + name_bytes + number_at<uint16_t>(header, 28);
  if (data > records_end_ || wanted.size > records_end_ - data) {
    refuse("its record ", printable(name), " reaches into its directory");
  }
  file_.read(into, wanted.size, data);
  if (has_checksums_ && crc32(into, wanted.size) != wanted.crc) {
    refuse("its record ", printable(name),
           " does not have the checksum that its directory says; copy or save it again");
  }
}

std::string StoredZip::read_text(const std::string& name, uint64_t most) const {
  const uint64_t bytes = size(name);
  if (bytes > most) {
    refuse("its record ", printable(name), " has ", bytes, " bytes, and at most ", most,
           " are read");
  }
  std::string text(bytes, '\0');
  read(name, text.data());
  return text;
}

}  // namespace oslo
