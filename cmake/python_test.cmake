# alq_python_test(name LABEL label SCRIPT file ARGS ...): a test in Python.
# The environment of scripts/setup, where there is one: it has numpy.
if(NOT DEFINED Python3_EXECUTABLE AND
   EXISTS ${PROJECT_SOURCE_DIR}/.venv/bin/python)
  set(Python3_EXECUTABLE ${PROJECT_SOURCE_DIR}/.venv/bin/python)
endif()
find_package(Python3 3.9 REQUIRED COMPONENTS Interpreter)

function(alq_python_test name)
  cmake_parse_arguments(ARG "" "LABEL;TIMEOUT;SCRIPT" "ARGS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_test(NAME ${name} COMMAND ${Python3_EXECUTABLE} -B
    ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_SCRIPT} ${ARG_ARGS})
  set_tests_properties(${name} PROPERTIES
    LABELS "${ARG_LABEL}" TIMEOUT ${ARG_TIMEOUT})
endfunction()
