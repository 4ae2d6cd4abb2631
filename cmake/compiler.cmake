# How every file is compiled: C11 with the compiler's own extensions, nothing visible that is not asked for.

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(PROJECT_IS_TOP_LEVEL AND NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Debug, Release, RelWithDebInfo or MinSizeRel" FORCE)
endif()

add_compile_options($<$<COMPILE_LANGUAGE:C>:-Wall> $<$<COMPILE_LANGUAGE:C>:-Wextra>)
if(SAT_WERROR)
  add_compile_options($<$<COMPILE_LANGUAGE:C>:-Werror>)
endif()
if(SAT_SANITIZE)
  add_compile_options(-fsanitize=${SAT_SANITIZE} -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${SAT_SANITIZE})
  if(SAT_SANITIZE MATCHES "undefined")
    # An operand without elements may be NULL, and NULL + 0 is what such an operand's address comes to.
    add_compile_options(-fno-sanitize-recover=undefined -fno-sanitize=pointer-overflow)
  endif()
endif()
