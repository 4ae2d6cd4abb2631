# The CUDA backend, where nvcc.cmake finds a compiler. Nothing of CUDA is needed to run: the runtime is linked in, the
# driver and the libraries are looked for when a context opens.

include(${CMAKE_CURRENT_LIST_DIR}/nvcc.cmake)

set(SAT_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO (where an nvcc works), ON or OFF")
set_property(CACHE SAT_CUDA PROPERTY STRINGS AUTO ON OFF)
# Machine code for sm_80 and sm_90a, and PTX of 80, which the driver of any later chip compiles for itself.
set(SAT_CUDA_ARCHITECTURES "80;90a-real" CACHE STRING "What CUDA code is compiled for, as CUDA_ARCHITECTURES has it")

set(SAT_HAVE_CUDA OFF)
if(NOT SAT_CUDA STREQUAL "OFF" AND NOT SAT_SANITIZE)
  if(CMAKE_CUDA_COMPILER AND IS_ABSOLUTE "${CMAKE_CUDA_COMPILER}" AND NOT EXISTS "${CMAKE_CUDA_COMPILER}")
    unset(CMAKE_CUDA_COMPILER CACHE) # it was there when this folder was configured
    file(REMOVE ${CMAKE_PLATFORM_INFO_DIR}/CMakeCUDACompiler.cmake)
  endif()
  if(NOT CMAKE_CUDA_COMPILER)
    unset(SAT_CUDA_INCLUDE CACHE)
    unset(SAT_CUDART CACHE)
    sat_find_nvcc(nvcc ${CMAKE_BINARY_DIR})
    if(nvcc)
      set(CMAKE_CUDA_COMPILER ${nvcc} CACHE FILEPATH "The CUDA compiler")
    endif()
  endif()
  if(CMAKE_CUDA_COMPILER)
    set(CMAKE_CUDA_ARCHITECTURES OFF) # each target says its own
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    sat_nvcc_libraries(${CMAKE_CUDA_COMPILER})
    enable_language(CUDA)
    if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.4) # it may be the caller's choice
      set(SAT_HAVE_CUDA ON)
    endif()
  endif()
  if(NOT SAT_HAVE_CUDA AND SAT_CUDA STREQUAL "ON")
    message(FATAL_ERROR "SAT_CUDA is ON and no nvcc of 12.4 or newer works here; scripts/setup.sh cuda fetches one")
  endif()
endif()
set(SAT_HAVE_CUDA ${SAT_HAVE_CUDA} CACHE INTERNAL "Whether the CUDA backend is built") # scripts/test.sh asks

if(SAT_HAVE_CUDA)
  get_filename_component(SAT_CUDA_BIN ${CMAKE_CUDA_COMPILER} REALPATH)
  get_filename_component(SAT_CUDA_BIN ${SAT_CUDA_BIN} DIRECTORY)
  find_path(SAT_CUDA_INCLUDE cuda_runtime_api.h HINTS ${SAT_CUDA_BIN}/../include
            ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} REQUIRED NO_DEFAULT_PATH)
  find_library(SAT_CUDART cudart_static HINTS ${SAT_CUDA_BIN}/../lib64 ${SAT_CUDA_BIN}/../lib
               ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES} REQUIRED NO_DEFAULT_PATH)
  set(SAT_CUDA_DEFINITIONS SAT_HAVE_CUDA)
  set(SAT_HAVE_SM90 OFF)
  if("${SAT_CUDA_ARCHITECTURES}" MATCHES "90a")
    set(SAT_HAVE_SM90 ON)
  else() # Hopper's files are left out, and this takes their lines out of variants.def
    list(APPEND SAT_CUDA_DEFINITIONS SAT_NO_SM90)
  endif()
  message(STATUS "CUDA backend: nvcc ${CMAKE_CUDA_COMPILER_VERSION}, architectures ${SAT_CUDA_ARCHITECTURES}")
endif()

function(sat_cuda_parts target)
  add_library(${target} OBJECT ${ARGN})
  target_include_directories(${target} PRIVATE include src)
  target_include_directories(${target} SYSTEM PRIVATE ${SAT_CUDA_INCLUDE})
  target_compile_definitions(${target} PRIVATE ${SAT_DEFINITIONS})
  # A C linker links: no exceptions, no C++ run time. No -flto, for the objects are merged.
  set(options -std=c++20 -Xcompiler=-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-fvisibility=hidden,-Wall
              --expt-relaxed-constexpr -lineinfo -Xfatbin=-compress-all)
  if(SAT_WERROR)
    list(APPEND options -Werror=all-warnings)
  endif()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${options}>" $<$<COMPILE_LANGUAGE:C>:-fno-lto>)
  set_target_properties(${target} PROPERTIES INTERPROCEDURAL_OPTIMIZATION OFF)
endfunction()

# One object file that has in it all that calls CUDA, C and CUDA sources, and NVIDIA's runtime, whose names are hidden:
# so our libraries are complete by themselves, and a program that has a CUDA runtime too has no quarrel with ours.
function(sat_add_cuda_object object)
  set(sources ${ARGN})
  set(parts sat_cuda)
  # Hopper's own instructions are for sm_90a and nothing else.
  set(hopper ${sources})
  list(FILTER hopper INCLUDE REGEX "_sm90\\.cu$")
  list(FILTER sources EXCLUDE REGEX "_sm90\\.cu$")
  sat_cuda_parts(sat_cuda ${sources})
  set_target_properties(sat_cuda PROPERTIES CUDA_ARCHITECTURES "${SAT_CUDA_ARCHITECTURES}")
  if(hopper AND SAT_HAVE_SM90)
    sat_cuda_parts(sat_cuda_sm90 ${hopper})
    set_target_properties(sat_cuda_sm90 PROPERTIES CUDA_ARCHITECTURES "90a-real")
    list(APPEND parts sat_cuda_sm90)
  endif()
  set(objects ${parts})
  list(TRANSFORM objects REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>")
  set(file ${CMAKE_CURRENT_BINARY_DIR}/sat_cuda.o)
  add_custom_command(OUTPUT ${file} DEPENDS ${objects} ${SAT_CUDART} COMMAND_EXPAND_LISTS VERBATIM
                     COMMAND ${CMAKE_C_COMPILER} -r -nostdlib -Wl,--force-group-allocation -o ${file} ${objects} ${SAT_CUDART}
                     COMMAND ${CMAKE_OBJCOPY} --wildcard --keep-global-symbol=sat_* ${file}
                     COMMENT "Merging the CUDA objects and the CUDA runtime")
  add_custom_target(sat_cuda_object DEPENDS ${file})
  add_dependencies(sat_cuda_object ${parts}) # make knows objects only by the targets that they belong to
  set(${object} ${file} PARENT_SCOPE)
endfunction()
