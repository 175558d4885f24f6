if(NOT TARGET aliquot)
  return()
endif()

# What an installation holds: the headers, the library with its SONAME links, a
# CMake package and a pkg-config file that find themselves wherever the tree is
# moved, and the aliquot command.
include(CMakePackageConfigHelpers)

set(ALQ_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/aliquot)

set(ALQ_NAMELINK)
set(ALQ_PC_LIB -laliquot)
if(ALQ_WHEEL)
  set(ALQ_NAMELINK NAMELINK_SKIP)
  set(ALQ_PC_LIB -l:libaliquot.so.${ALQ_ABI_MAJOR})
endif()
install(TARGETS aliquot EXPORT aliquotTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ${ALQ_NAMELINK})
install(FILES
  include/aliquot/aliquot.h
  include/aliquot/aliquot.hpp
  abi/aliquot_api.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/aliquot)
install(FILES
  include/aliquot/hpp/base.hpp
  include/aliquot/hpp/stream.hpp
  include/aliquot/hpp/group.hpp
  include/aliquot/hpp/engine.hpp
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/aliquot/hpp)
install(EXPORT aliquotTargets NAMESPACE aliquot::
  DESTINATION ${ALQ_CMAKE_DIR})

configure_package_config_file(cmake/aliquotConfig.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/aliquotConfig.cmake
  INSTALL_DESTINATION ${ALQ_CMAKE_DIR})
write_basic_package_version_file(
  ${CMAKE_CURRENT_BINARY_DIR}/aliquotConfigVersion.cmake
  COMPATIBILITY SameMajorVersion)
install(FILES
  ${CMAKE_CURRENT_BINARY_DIR}/aliquotConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/aliquotConfigVersion.cmake
  DESTINATION ${ALQ_CMAKE_DIR})

# From lib/pkgconfig back to the prefix, however deep lib is.
file(RELATIVE_PATH ALQ_PC_PREFIX
  /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(cmake/aliquot.pc.in
  ${CMAKE_CURRENT_BINARY_DIR}/aliquot.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/aliquot.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The command looks for the library beside itself.
if(TARGET aliquot_command)
  file(RELATIVE_PATH ALQ_LIB_FROM_BIN
    /prefix/${CMAKE_INSTALL_BINDIR} /prefix/${CMAKE_INSTALL_LIBDIR})
  set_target_properties(aliquot_command PROPERTIES
    INSTALL_RPATH $ORIGIN/${ALQ_LIB_FROM_BIN})
  if(ALQ_WHEEL)
    target_link_options(aliquot_command PRIVATE
      -static-libstdc++ -static-libgcc)
  endif()
  install(TARGETS aliquot_command DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
