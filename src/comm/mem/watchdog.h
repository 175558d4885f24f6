// Watchdog: one thread per process that notices dead and stopped peers.
//
// It sleeps in poll() on a pidfd of every other process that shares a group
// with this one; the kernel wakes it the moment one of them ends.  Twice a
// second it also asks the kernel whether one is stopped, for a stopped process
// answers nobody and ends no poll; after 5 s it counts as failed.  (On one host
// the kernel knows; a heartbeat would also call a starved process dead.)  All
// groups with a rank of that process are then poisoned.  Started with the first
// group, stopped with the last; a process whose groups are all its own has
// none.
#pragma once

#include <cstdint>

namespace aliquot::mem {

struct GroupCore;
struct Peer;

// For how long a process may be stopped.
constexpr int64_t kStopLimitNs = 5'000'000'000;

// Whether a process has ended, all its threads that is; asks the kernel.
bool process_ended(const Peer& peer);

// False: there is no thread to be had.
bool watchdog_add(GroupCore* core);
void watchdog_remove(GroupCore* core);

}  // namespace aliquot::mem
