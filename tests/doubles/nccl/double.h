// What a test may ask of the stand-in for libnccl.so.2, beside NCCL's ABI.
// Violations are counted by the stand-in for the driver.
//
// Environment:
//   ALIQUOT_DOUBLE_NCCL_VERSION   default 23007
//   ALIQUOT_DOUBLE_NCCL_COMMS     how many communicators a process may have
//   ALIQUOT_DOUBLE_NCCL_ABORT_MS  how long ncclCommAbort blocks
#pragma once

#include <cstdint>

extern "C" {

// "call" (collectives and messages), "launch" (groups), "destroy", "abort".
int64_t double_nccl_count(const char* what);
void double_nccl_reset_counts();
// Communicators neither destroyed nor aborted.
int64_t double_nccl_alive();
// The n-th launch of this process from now on ends in an asynchronous error.
void double_nccl_fail(int64_t launch, int32_t result);
// The n-th launch of the world's rank is issued after the next one on another
// communicator.
void double_nccl_swap(int64_t launch, int32_t rank);
}
