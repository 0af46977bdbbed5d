#include "mpu/transport/shared_memory/segment/meeting.h"

#include <nlohmann/json.hpp>

#include "mpu/base/error.h"
#include "mpu/base/text.h"
#include "mpu/transport/presence/note.h"

namespace oslo::shared_memory {
namespace {

using nlohmann::json;

std::string key(const std::string& what, int attempt, int rank = -1) {
  const std::string common = c10::str("shared_memory/", attempt, "/", what);
  return rank < 0 ? common : c10::str(common, "/", rank);
}

bool is_verdict(const json& said) {
  return said.is_object() && said.contains("failure") && said["failure"].is_string() &&
         said.contains("final") && said["final"].is_boolean();
}

bool is_offer(const json& said) {
  if (!said.is_object()) return false;
  if (said.contains("verdict")) return is_verdict(said["verdict"]);
  return said.contains("address") && said["address"].is_string() && said.contains("inode") &&
         said["inode"].is_number_unsigned() && said.contains("host") && said["host"].is_string();
}

json read(const Meeting& meeting, const std::string& name, int from) {
  std::string text;
  try {
    meeting.store.wait({name}, meeting.timeout);
    text = meeting.store.get_to_str(name);
  } catch (const std::exception& error) {
    fail_as(ErrorKind::peer, "rank ", meeting.in_world(meeting.rank), " of group ", meeting.group,
            " waited for rank ", meeting.in_world(from), " to share memory with it, for up to ",
            meeting.timeout.count(), " ms (", first_line(error.what()), ")");
  }
  json said = json::parse(text, nullptr, /*allow_exceptions=*/false);
  OSLO_CHECK(is_offer(said) || is_verdict(said), text.size(), " bytes of '", name, "' ",
             kForeignNote);
  return said;
}

void write(const Meeting& meeting, const std::string& name, const json& value) {
  meeting.store.set(name, value.dump());
}

/// What rank 0 says at the end of an attempt: empty when all have the memory.
json verdict(const std::string& failure, bool final) {
  return {{"failure", failure}, {"final", final}};
}

bool failed(const json& verdict) {
  OSLO_CHECK(is_verdict(verdict), "a rank's answer ", kForeignNote);
  return !verdict.at("failure").get<std::string>().empty();
}

void obey(const json& verdict) {
  if (verdict.at("final")) fail(verdict.at("failure").get<std::string>());
}

std::shared_ptr<Segment> offer(const Meeting& meeting, int attempt, size_t bytes,
                               const std::function<void(Segment&)>& prepare) {
  const bool last = attempt == 1;
  std::shared_ptr<Segment> segment;
  json failure = verdict("", false);
  try {
    segment = Segment::create(last ? Segment::Kind::named : Segment::Kind::anonymous, bytes);
    prepare(*segment);
    write(meeting, key("offer", attempt),
          {{"address", segment->address()}, {"inode", segment->inode()}, {"host", meeting.host}});
  } catch (const std::exception& error) {
    failure = verdict(error.what(), last);
    write(meeting, key("offer", attempt), {{"verdict", failure}});
    obey(failure);
    return nullptr;
  }
  try {
    for (int rank = 1; rank < meeting.size; ++rank) {
      const json reply = read(meeting, key("reply", attempt, rank), rank);
      if (failed(reply)) {
        failure = verdict(reply.at("failure"), last || reply.at("final").get<bool>());
      }
    }
  } catch (const Error& error) {
    failure = verdict(error.what(), true);
  }
  segment->unlink();
  write(meeting, key("verdict", attempt), failure);
  obey(failure);
  return failed(failure) ? nullptr : segment;
}

std::shared_ptr<Segment> accept(const Meeting& meeting, int attempt, size_t bytes,
                                const std::function<void(Segment&)>& prepare) {
  const json offered = read(meeting, key("offer", attempt), 0);
  OSLO_CHECK(is_offer(offered), "the memory's offer ", kForeignNote);
  if (offered.contains("verdict")) {
    obey(offered.at("verdict"));
    return nullptr;
  }
  std::shared_ptr<Segment> segment;
  json reply = verdict("", false);
  if (offered.at("host") != meeting.host) {
    reply = verdict(c10::str("ranks ", meeting.in_world(0), " and ", meeting.in_world(meeting.rank),
                             " of group ", meeting.group,
                             " cannot share memory: they are on different hosts (or containers, or "
                             "users)"),
                    true);
  } else {
    try {
      segment = Segment::open(offered.at("address"), bytes, offered.at("inode"));
      prepare(*segment);
    } catch (const std::exception& error) {
      reply = verdict(c10::str("rank ", meeting.in_world(meeting.rank), ": ", error.what()), false);
    }
  }
  write(meeting, key("reply", attempt, meeting.rank), reply);
  const json decided = read(meeting, key("verdict", attempt), 0);
  obey(decided);
  return failed(decided) ? nullptr : segment;
}

}  // namespace

std::shared_ptr<Segment> share_segment(const Meeting& meeting, size_t bytes,
                                       const std::function<void(Segment&)>& prepare) {
  for (int attempt = 0; attempt < 2; ++attempt) {
    auto segment = meeting.rank == 0 ? offer(meeting, attempt, bytes, prepare)
                                     : accept(meeting, attempt, bytes, prepare);
    if (segment) return segment;
  }
  fail("group ", meeting.group, " cannot share memory");
}

}  // namespace oslo::shared_memory
