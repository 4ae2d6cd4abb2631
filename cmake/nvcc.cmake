# Finds an nvcc of 12.4 or newer that works here: $CUDACXX, $CUDA_HOME, $CUDA_PATH, the PATH, /usr/local/cuda, NVIDIA's
# wheels in an active Python environment, and those that scripts/setup.sh has put into <build>/cuda. One that cannot
# build a small program (its wheels are not complete, the host compiler is missing or too new for it) is passed over.
# usage: cmake -DBUILD=<build folder> -P cmake/nvcc.cmake       succeeds if there is one; else setup.sh fetches one

set(SAT_PROBE ${CMAKE_CURRENT_LIST_DIR}/probe.cu)

# The compiler to build with, or "". What was passed over, and why, is said by message(STATUS).
function(sat_find_nvcc result build)
  find_program(on_path nvcc NO_CACHE NO_CMAKE_PATH NO_CMAKE_ENVIRONMENT_PATH)
  file(GLOB wheels $ENV{VIRTUAL_ENV}/lib/python*/site-packages/nvidia/cu*/bin/nvcc
       $ENV{CONDA_PREFIX}/lib/python*/site-packages/nvidia/cu*/bin/nvcc)
  if(EXISTS ${build}/cuda/ready) # written last: without it the wheels may not be complete
    file(GLOB fetched ${build}/cuda/lib/python*/site-packages/nvidia/cu*/bin/nvcc)
  endif()
  set(${result} "" PARENT_SCOPE)
  foreach(nvcc $ENV{CUDACXX} $ENV{CUDA_HOME}/bin/nvcc $ENV{CUDA_PATH}/bin/nvcc ${on_path} /usr/local/cuda/bin/nvcc
          ${wheels} ${fetched})
    if(EXISTS ${nvcc} AND NOT IS_DIRECTORY ${nvcc})
      sat_probe_nvcc(fault ${nvcc} ${build})
      if(NOT fault)
        set(${result} ${nvcc} PARENT_SCOPE)
        return()
      endif()
      message(STATUS "${nvcc} is passed over: ${fault}")
    endif()
  endforeach()
endfunction()

# What is wrong with an nvcc, in a few words; "" if nothing is.
function(sat_probe_nvcc fault nvcc build)
  execute_process(COMMAND ${nvcc} --version OUTPUT_VARIABLE text ERROR_QUIET RESULT_VARIABLE status)
  if(NOT status EQUAL 0 OR NOT text MATCHES "release ([0-9]+\\.[0-9]+)")
    set(${fault} "it does not run" PARENT_SCOPE)
    return()
  elseif(CMAKE_MATCH_1 VERSION_LESS 12.4)
    set(${fault} "it is ${CMAKE_MATCH_1}, 12.4 is needed" PARENT_SCOPE)
    return()
  endif()
  sat_nvcc_libraries(${nvcc})
  file(MAKE_DIRECTORY ${build}/CMakeFiles)
  execute_process(COMMAND ${nvcc} -std=c++20 -arch=sm_80 ${SAT_PROBE} -o ${build}/CMakeFiles/nvcc_probe
                  OUTPUT_VARIABLE text ERROR_VARIABLE text RESULT_VARIABLE status)
  file(REMOVE ${build}/CMakeFiles/nvcc_probe)
  if(NOT status EQUAL 0)
    string(REGEX MATCH "[^\n]*(error|cannot|not found|No such)[^\n]*" line "${text}")
    set(${fault} "it cannot build a program: ${line}" PARENT_SCOPE)
  else()
    set(${fault} "" PARENT_SCOPE)
  endif()
endfunction()

# nvcc looks for its libraries in lib64, and wheels have them in lib.
function(sat_nvcc_libraries nvcc)
  get_filename_component(root ${nvcc} REALPATH)
  get_filename_component(root ${root} DIRECTORY)
  get_filename_component(root ${root} DIRECTORY)
  if(EXISTS ${root}/lib/libcudart_static.a AND NOT "$ENV{LIBRARY_PATH}" MATCHES "${root}/lib")
    string(REGEX REPLACE ":$" "" paths "${root}/lib:$ENV{LIBRARY_PATH}")
    set(ENV{LIBRARY_PATH} ${paths})
  endif()
endfunction()

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  get_filename_component(BUILD ${BUILD} ABSOLUTE)
  sat_find_nvcc(nvcc ${BUILD})
  if(NOT nvcc)
    message(FATAL_ERROR "no nvcc of 12.4 or newer works here")
  endif()
  message(STATUS "${nvcc}")
endif()
