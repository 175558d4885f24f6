# alq_shared_library(target SOURCES ... DEPENDS ...): the one shared library.
#
# SOURCES are the files that define the alq_* functions: they are compiled into
# the library itself, for --exclude-libs hides every symbol of an archive.  The
# generated table and layout are added here.  DEPENDS are the folders' static
# libraries; nothing of them is visible outside.
foreach(part MAJOR MINOR)
  string(REGEX MATCH "#define ALQ_ABI_${part} ([0-9]+)" _ "${ALQ_HEADER}")
  set(ALQ_ABI_${part} ${CMAKE_MATCH_1})
endforeach()
set(ALQ_VERSION_SCRIPT ${PROJECT_SOURCE_DIR}/abi/aliquot.map)

function(alq_shared_library target)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(${target} SHARED ${ARG_SOURCES}
    ${PROJECT_SOURCE_DIR}/abi/api_table.cc
    ${PROJECT_SOURCE_DIR}/abi/layout.cc)
  add_library(aliquot::${target} ALIAS ${target})
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
    $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR})
  target_link_libraries(${target} PRIVATE
    $<BUILD_INTERFACE:alq_flags> ${ARG_DEPENDS})
  # The file's version is the ABI's, not the library's.
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME aliquot
    VERSION ${ALQ_ABI_MAJOR}.${ALQ_ABI_MINOR}.${PROJECT_VERSION_PATCH}
    SOVERSION ${ALQ_ABI_MAJOR}
    LINK_DEPENDS ${ALQ_VERSION_SCRIPT})
  if(ALQ_WHEEL)  # a wheel holds no links: one file, named as it is loaded
    set_property(TARGET ${target} PROPERTY VERSION)
    target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc)
  endif()
  target_link_options(${target} PRIVATE
    LINKER:--version-script=${ALQ_VERSION_SCRIPT}
    LINKER:--exclude-libs,ALL
    LINKER:-z,defs LINKER:-z,now LINKER:-z,nodelete)
endfunction()
