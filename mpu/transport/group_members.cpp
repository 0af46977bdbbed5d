#include "mpu/transport/group_members.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <set>
#include <sstream>

#include "mpu/base/error.h"
#include "mpu/transport/presence/note.h"

namespace oslo {
namespace {

DeviceCarrier carrier_of_devices(const std::string& group, const std::vector<GroupMember>& members,
                                 const std::vector<int>& ranks, size_t hosts) {
  std::set<std::string> devices;
  std::string lacking;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    if (members[rank].device.empty()) {
      lacking += c10::str(" ", ranks[rank]);
    } else {
      devices.insert(members[rank].device);
    }
  }
  const bool asked = members[0].wanted == Transport::nccl;
  OSLO_CHECK(!asked || lacking.empty(), "backend 'nccl': group ", group, ": its ranks", lacking,
             " have no CUDA device, or a build without NCCL: configure it with -DOSLO_CUDA=ON");
  OSLO_CHECK(!asked || devices.size() == members.size(), "backend 'nccl': the ", members.size(),
             " ranks of group ", group, " are on ", devices.size(),
             " GPUs, and NCCL takes one rank for each; use the backend 'auto', which copies by way "
             "of the host's memory where ranks share a GPU");
  if (!lacking.empty()) return DeviceCarrier::nothing;
  if (devices.size() == members.size()) return DeviceCarrier::nccl;
  return hosts == 1 ? DeviceCarrier::staged : DeviceCarrier::nothing;
}

}  // namespace

std::string GroupMember::to_text() const {
  return c10::str(to_string(wanted), "\n", host, "\n", device);
}

GroupMember GroupMember::from_text(const std::string& text) {
  const size_t host = text.find('\n') + 1, device = text.find('\n', host) + 1;
  OSLO_CHECK(host != 0 && device > host, text.size(), " bytes of a group's member ", kForeignNote);
  return {parse_transport(text.substr(0, host - 1)), text.substr(host, device - host - 1),
          text.substr(device)};
}

std::string MembersMet::to_text() const {
  std::string text = std::to_string(static_cast<int>(device));
  for (const int host : host_of) text += c10::str(" ", host);
  return text;
}

MembersMet MembersMet::from_text(const std::string& text, int size) {
  std::istringstream numbers(text);
  int device = -1;
  numbers >> device;
  MembersMet met{{}, static_cast<DeviceCarrier>(device)};
  int hosts = 0;  // so far: they are numbered in the order in which they appear
  bool sound = device >= 0 && device <= static_cast<int>(DeviceCarrier::staged);
  for (int host = 0; std::ssize(met.host_of) <= size && numbers >> host;) {
    sound = sound && host >= 0 && host <= hosts;
    hosts = std::max(hosts, host + 1);
    met.host_of.push_back(host);
  }
  OSLO_CHECK(sound && numbers.eof() && std::ssize(met.host_of) == size, text.size(),
             " bytes of a group's ", size, " members ", kForeignNote);
  return met;
}

MembersMet what_was_met(const std::string& group, const std::vector<GroupMember>& members,
                        const std::vector<int>& ranks) {
  MembersMet met;
  std::vector<std::string> hosts;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    OSLO_CHECK(members[rank].wanted == members[0].wanted, "group ", group, ": rank ", ranks[0],
               " has the backend '", to_string(members[0].wanted), "' and rank ", ranks[rank], " '",
               to_string(members[rank].wanted),
               "'; start all ranks with the same OSLO_BACKEND and config");
    const auto found = std::find(hosts.begin(), hosts.end(), members[rank].host);
    met.host_of.push_back(static_cast<int>(found - hosts.begin()));
    if (found == hosts.end()) hosts.push_back(members[rank].host);
  }
  met.device = carrier_of_devices(group, members, ranks, hosts.size());
  return met;
}

}  // namespace oslo
