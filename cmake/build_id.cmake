# What tells one build from another: a hash of the library's sources, of these build files, and of compilers and flags.
# A verdict in the cache counts for the build that gave it (docs/internals/check.md). Included, this file defines
# sat_add_build_id; as a script it hashes and writes, whenever a source has changed since. No times, no paths.

function(sat_build_inputs root variable)
  foreach(folder src src/base src/cache src/core src/api src/ops src/backend src/libs include cmake)
    foreach(ending c h cu cuh def inc cmake)
      list(APPEND patterns ${root}/${folder}/*.${ending})
    endforeach()
  endforeach()
  foreach(ending c h cu cuh def inc)
    list(APPEND kernels ${root}/src/kernels/*.${ending}) # and in the folders below
  endforeach()
  set(again CONFIGURE_DEPENDS)
  if(CMAKE_SCRIPT_MODE_FILE)
    set(again)
  endif()
  file(GLOB files LIST_DIRECTORIES false RELATIVE ${root} ${again} ${patterns})
  file(GLOB_RECURSE below LIST_DIRECTORIES false RELATIVE ${root} ${again} ${kernels})
  list(APPEND files ${below} CMakeLists.txt)
  list(SORT files)
  set(${variable} ${files} PARENT_SCOPE)
endfunction()

# Settings are known when this folder is configured; prefix maps name folders and change no instruction.
function(sat_build_settings variable)
  get_directory_property(options COMPILE_OPTIONS)
  get_directory_property(definitions COMPILE_DEFINITIONS)
  set(text "${CMAKE_SYSTEM_NAME} ${CMAKE_SYSTEM_PROCESSOR} ${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION} "
           "${CMAKE_C_COMPILER_TARGET} ${OpenMP_C_FLAGS} ${options} ${definitions} ${SAT_DEFINITIONS}")
  set(languages C)
  if(SAT_HAVE_CUDA)
    list(APPEND text "${CMAKE_CUDA_COMPILER_VERSION} ${SAT_CUDA_ARCHITECTURES} ${CMAKE_CUDA_HOST_COMPILER_VERSION}")
    list(APPEND languages CUDA)
  endif()
  foreach(language ${languages})
    foreach(config "" _DEBUG _RELEASE _RELWITHDEBINFO _MINSIZEREL)
      list(APPEND text "${CMAKE_${language}_FLAGS${config}}")
    endforeach()
  endforeach()
  string(REGEX REPLACE "-f[a-z]+-prefix-map=[^ ;]*" "" text "${text}")
  string(SHA256 hash "${text}")
  set(${variable} ${hash} PARENT_SCOPE)
endfunction()

# A C file for the library, which defines sat_build_id.
function(sat_add_build_id variable)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/sat_build_id.c)
  set(settings ${CMAKE_CURRENT_BINARY_DIR}/sat_build_settings.txt)
  sat_build_inputs(${PROJECT_SOURCE_DIR} inputs)
  list(TRANSFORM inputs PREPEND ${PROJECT_SOURCE_DIR}/)
  sat_build_settings(hash)
  file(CONFIGURE OUTPUT ${settings} CONTENT "${hash}\n") # leaves a file alone that says so already
  set(hashing ${CMAKE_COMMAND} -D root=${PROJECT_SOURCE_DIR} -D settings=${settings} -D output=${output}
              -P ${PROJECT_SOURCE_DIR}/cmake/build_id.cmake)
  add_custom_command(OUTPUT ${output} DEPENDS ${inputs} ${settings} COMMAND ${hashing} VERBATIM
                     COMMENT "Hashing the sources")
  if(NOT EXISTS ${output}) # for tools that read compile_commands.json, and build nothing
    execute_process(COMMAND ${hashing} COMMAND_ERROR_IS_FATAL ANY)
  endif()
  set_source_files_properties(${output} PROPERTIES COMPILE_DEFINITIONS SAT_BUILD_CONFIG="$<CONFIG>")
  set(${variable} ${output} PARENT_SCOPE)
endfunction()

if(CMAKE_SCRIPT_MODE_FILE)
  cmake_minimum_required(VERSION 3.25)
  sat_build_inputs(${root} inputs)
  file(READ ${settings} text)
  foreach(file ${inputs})
    file(SHA256 ${root}/${file} hash)
    string(APPEND text "${hash} ${file}\n")
  endforeach()
  string(SHA256 hash "${text}")
  file(WRITE ${output} "/* Made by cmake/build_id.cmake. */\n"
                       "const char sat_build_id[] = \"${hash} \" SAT_BUILD_CONFIG;\n")
endif()
