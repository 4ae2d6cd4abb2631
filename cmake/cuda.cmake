# The CUDA backend, where an nvcc of 12.4 or newer is found: CMAKE_CUDA_COMPILER or $CUDACXX, $CUDA_HOME, the system, or
# NVIDIA's wheels in an environment at <build>/cuda. Nothing of CUDA is needed to run: the runtime is
# linked in, the driver and the libraries are looked for when a context opens.

set(SAT_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO (where nvcc is found), ON or OFF")
set(SAT_CUDA_ARCHITECTURES "80;90a-real" CACHE STRING "What CUDA code is compiled for, as CUDA_ARCHITECTURES has it")
set_property(CACHE SAT_CUDA PROPERTY STRINGS AUTO ON OFF)

set(SAT_HAVE_CUDA OFF)
if(NOT SAT_CUDA STREQUAL "OFF" AND NOT SAT_SANITIZE)
  if(NOT CMAKE_CUDA_COMPILER AND DEFINED ENV{CUDACXX})
    set(CMAKE_CUDA_COMPILER $ENV{CUDACXX})
  elseif(NOT CMAKE_CUDA_COMPILER)
    file(GLOB wheels ${CMAKE_BINARY_DIR}/cuda/lib/python*/site-packages/nvidia/cu*/bin)
    find_program(SAT_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH PATHS /usr/local/cuda/bin ${wheels} PATH_SUFFIXES bin)
    if(SAT_NVCC)
      set(CMAKE_CUDA_COMPILER ${SAT_NVCC})
    endif()
  endif()
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_ARCHITECTURES OFF) # each target says its own
    # The wheels have no libcudart.so to link CMake's trial programs with, and no driver stub; the static runtime does.
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    enable_language(CUDA)
    set(CMAKE_CUDA_IMPLICIT_LINK_LIBRARIES) # a C linker links, without the C++ run time
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 12.4)
      message(STATUS "No CUDA backend: nvcc is ${CMAKE_CUDA_COMPILER_VERSION}, 12.4 is needed")
    else()
      set(SAT_HAVE_CUDA ON)
    endif()
  endif()
  if(NOT SAT_HAVE_CUDA AND SAT_CUDA STREQUAL "ON")
    message(FATAL_ERROR "SAT_CUDA is ON and no nvcc of 12.4 or newer was found")
  endif()
endif()

if(SAT_HAVE_CUDA)
  get_filename_component(SAT_CUDA_BIN ${CMAKE_CUDA_COMPILER} REALPATH)
  get_filename_component(SAT_CUDA_BIN ${SAT_CUDA_BIN} DIRECTORY)
  find_path(SAT_CUDA_INCLUDE cuda_runtime_api.h HINTS ${SAT_CUDA_BIN}/../include
            ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} REQUIRED NO_DEFAULT_PATH)
  find_library(SAT_CUDART cudart_static HINTS ${SAT_CUDA_BIN}/../lib64 ${SAT_CUDA_BIN}/../lib
               ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES} REQUIRED NO_DEFAULT_PATH)
  message(STATUS "CUDA backend: nvcc ${CMAKE_CUDA_COMPILER_VERSION}, architectures ${SAT_CUDA_ARCHITECTURES}")
endif()

# CUDA sources become objects that a C linker takes: no exceptions, no C++ run time.
function(sat_add_cuda_objects target)
  add_library(${target} OBJECT ${ARGN})
  target_include_directories(${target} PRIVATE include src)
  target_compile_definitions(${target} PRIVATE SAT_HAVE_CUDA)
  target_compile_options(${target} PRIVATE -std=c++20 -Xcompiler=-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-fvisibility=hidden,-Wall --expt-relaxed-constexpr
                         -lineinfo)
  if(SAT_WERROR)
    target_compile_options(${target} PRIVATE -Werror=all-warnings)
  endif()
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${SAT_CUDA_ARCHITECTURES}"
                        POSITION_INDEPENDENT_CODE ON)
endfunction()
