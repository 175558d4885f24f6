# One interface target with the flags that every target of the project uses.
add_library(alq_flags INTERFACE)
target_compile_options(alq_flags INTERFACE
  -Wall -Wextra -Wconversion -Wshadow -Werror
  "$<$<COMPILE_LANGUAGE:CXX>:-Woverloaded-virtual;-Wnon-virtual-dtor>"
  # GCC 12 reports overlaps in std::string that do not exist (bug 105329).
  "$<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>"
  # sqrt vectorises only without errno; no contraction, so that every target
  # gives the same bits.
  -fno-math-errno -ffp-contract=off)
if(ALQ_SANITIZE)
  target_compile_options(alq_flags INTERFACE
    -fsanitize=${ALQ_SANITIZE} -fno-omit-frame-pointer -g1)
  target_link_options(alq_flags INTERFACE -fsanitize=${ALQ_SANITIZE})
  if(ALQ_SANITIZE MATCHES "undefined")
    target_compile_options(alq_flags INTERFACE -fno-sanitize-recover=all)
  endif()
endif()
target_compile_definitions(alq_flags INTERFACE _GNU_SOURCE)

add_library(alq_fmt STATIC ${CMAKE_CURRENT_LIST_DIR}/fmt.cc)
target_link_libraries(alq_flags INTERFACE alq_fmt)
