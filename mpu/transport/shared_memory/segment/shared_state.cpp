#include "mpu/transport/shared_memory/segment/shared_state.h"

namespace oslo::shared_memory {
namespace {

constexpr size_t kPage = 4096;

size_t whole_pages(size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

}  // namespace

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::none:
      return "nothing";
    case Kind::all_reduce:
      return "all_reduce";
    case Kind::reduce:
      return "reduce";
    case Kind::reduce_scatter:
      return "reduce_scatter";
    case Kind::all_gather:
      return "all_gather";
    case Kind::gather:
      return "gather";
    case Kind::scatter:
      return "scatter";
    case Kind::broadcast:
      return "broadcast";
    case Kind::all_to_all:
      return "all_to_all";
    case Kind::barrier:
      return "barrier";
  }
  return "an unknown operation";
}

SegmentLayout::SegmentLayout(int size, size_t chunk, size_t ring)
    : chunk(chunk), ring(ring), size(size) {
  const auto n = static_cast<size_t>(size);
  members = whole_pages(sizeof(Failure));
  slots = members + whole_pages(n * sizeof(MemberState));
  channels = slots + whole_pages(n * kSlots * chunk);
  bytes = channels + n * n * whole_pages(sizeof(Channel) + ring);
}

Failure& SegmentLayout::failure(const Segment& segment) const {
  return *reinterpret_cast<Failure*>(segment.data());
}

MemberState& SegmentLayout::member(const Segment& segment, int rank) const {
  return reinterpret_cast<MemberState*>(segment.data() + members)[rank];
}

size_t SegmentLayout::channel_offset(int from, int to) const {
  return channels + (static_cast<size_t>(from) * size + to) * whole_pages(sizeof(Channel) + ring);
}

Channel& SegmentLayout::channel(const Segment& segment, int from, int to) const {
  return *reinterpret_cast<Channel*>(segment.data() + channel_offset(from, to));
}

std::byte* SegmentLayout::ring_of(const Segment& segment, int from, int to) const {
  return segment.data() + channel_offset(from, to) + sizeof(Channel);
}

void SegmentLayout::commit_channel(const Segment& segment, int from, int to) const {
  segment.commit(channel_offset(from, to), whole_pages(sizeof(Channel) + ring));
}

}  // namespace oslo::shared_memory
