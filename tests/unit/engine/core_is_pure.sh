#!/usr/bin/env bash
# The core alone may not reach for threads, clocks, files or system calls: its
# object file needs only the allocator (for construction) and the C++ run time.
set -eu
allowed='^(_Znwm|_ZdlPv|_ZdlPvm|memmove|memcpy|memset|_Unwind_Resume|__cxa_.*|__gxx_personality_v0|_ZSt[0-9]+__throw_.*|__(asan|ubsan|tsan)_.*|_GLOBAL_OFFSET_TABLE_|__stack_chk_fail)$'
status=0
for symbol in $(nm -u "$1" | awk '{print $2}'); do
  if ! [[ $symbol =~ $allowed ]]; then
    echo "core.cc needs $symbol" >&2
    status=1
  fi
done
exit $status
