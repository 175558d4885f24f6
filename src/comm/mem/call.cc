#include "comm/mem/call.h"

#include <numeric>

namespace aliquot::mem {

uint64_t record(const GroupCore& core, const Coll& coll, uint64_t number) {
  Flight* flight = core.world->context->flight.get();
  if (flight == nullptr) return 0;
  FlightCall call;
  call.group = core.flight_group;
  call.kind = static_cast<int32_t>(coll.kind);
  call.dtype = coll.dtype;
  call.root = coll.root;
  call.number = number;
  call.count = coll.count;
  if (!coll.counts.empty()) {
    call.count =
        std::accumulate(coll.counts.begin(), coll.counts.end(), int64_t{0});
  }
  call.label = coll.label;
  return flight->begin(call);
}

}  // namespace aliquot::mem
