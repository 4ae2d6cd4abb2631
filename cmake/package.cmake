# What `cpack` makes of the install rules: a tarball that works wherever it is unpacked, and a .deb. `make release-check`
# installs both and builds a program with them.

set(CPACK_PACKAGE_NAME sparse-autotune)
set(CPACK_PACKAGE_VENDOR "The sparse_autotune authors")
set(CPACK_PACKAGE_CONTACT "The sparse_autotune authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGE_DESCRIPTION
    "Multiplies block-sparse matrices and computes attention under block masks, on CPUs and NVIDIA GPUs. For each problem it
races every implementation that fits, checks each result, and remembers the winner. The C library, shared and static,
its header and the command line.")
set(CPACK_GENERATOR "TGZ;DEB")
string(TOLOWER ${CMAKE_SYSTEM_NAME} SAT_SYSTEM)
set(CPACK_PACKAGE_FILE_NAME sparse-autotune-${PROJECT_VERSION}-${SAT_SYSTEM}-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_STRIP_FILES ON)
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE-MIT)
set(CPACK_VERBATIM_VARIABLES ON)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libopenblas0")
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
find_program(SAT_SHLIBDEPS dpkg-shlibdeps)
mark_as_advanced(SAT_SHLIBDEPS)
if(SAT_SHLIBDEPS)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
else()
  set(CPACK_DEBIAN_PACKAGE_DEPENDS "libc6, libgomp1")
endif()
include(CPack)
