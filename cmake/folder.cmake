# alq_folder(name SOURCES ... DEPENDS ...): the static library of one folder of
# src/.  It may include from the folders it depends on, and from no other.
function(alq_folder name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(alq_${name} STATIC ${ARG_SOURCES})
  target_include_directories(alq_${name} PUBLIC
    ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src
    ${PROJECT_SOURCE_DIR})
  target_link_libraries(alq_${name} PUBLIC alq_flags ${ARG_DEPENDS})
endfunction()

# alq_test(name LABEL label SOURCES ... DEPENDS ...): a Boost.Test executable.
function(alq_test name)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT" "SOURCES;DEPENDS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 240)  # a hang; waits of ranks stretch on a busy machine
  endif()
  if(ALQ_SANITIZE)  # several times slower
    math(EXPR ARG_TIMEOUT "4 * ${ARG_TIMEOUT}")
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE alq_flags ${ARG_DEPENDS} alq_boost_test)
  set_target_properties(${name} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name})
  set_tests_properties(${name} PROPERTIES
    LABELS "${ARG_LABEL}" TIMEOUT ${ARG_TIMEOUT})
endfunction()
