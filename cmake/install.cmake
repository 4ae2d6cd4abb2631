# What `cmake --install` gives: header, both libraries, the command line and its page, and what find_package and
# pkg-config look for.

include(CMakePackageConfigHelpers)

install(FILES include/sparse_autotune.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS sparse_autotune_shared EXPORT sparse_autotune)
install(TARGETS sparse_autotune_static EXPORT sparse_autotune_static)
if(TARGET sparse_autotune_cli)
  install(TARGETS sparse_autotune_cli)
endif()
if(EXISTS ${PROJECT_SOURCE_DIR}/docs/sparse_autotune.1)
  install(FILES docs/sparse_autotune.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
endif()
install(FILES LICENSE-MIT LICENSE-APACHE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# Two export sets, because the static library needs OpenMP and Threads found first and the shared one does not.
set(SAT_CONFIG_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/sparse_autotune)
foreach(set sparse_autotune sparse_autotune_static)
  install(EXPORT ${set} NAMESPACE sparse_autotune:: FILE ${set}Targets.cmake DESTINATION ${SAT_CONFIG_DIR})
endforeach()
configure_package_config_file(cmake/sparse_autotuneConfig.cmake.in sparse_autotuneConfig.cmake
                              INSTALL_DESTINATION ${SAT_CONFIG_DIR})
write_basic_package_version_file(sparse_autotuneConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/sparse_autotuneConfig.cmake
        ${CMAKE_CURRENT_BINARY_DIR}/sparse_autotuneConfigVersion.cmake DESTINATION ${SAT_CONFIG_DIR})

# The .pc file finds its prefix from its own place, so that an installed tree can be moved.
file(RELATIVE_PATH SAT_PC_PREFIX "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
set(SAT_PC_CUDA)
if(SAT_HAVE_CUDA)
  set(SAT_PC_CUDA " -lrt") # for the CUDA runtime, which is inside
endif()
configure_file(cmake/sparse_autotune.pc.in sparse_autotune.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/sparse_autotune.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
