# Settings that every target shares, and the functions the folders declare theirs with.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

option(MUSTER_WERROR "Treat warnings as errors" OFF)
option(MUSTER_FUZZ "Build what libFuzzer runs; checksums are all zero then, so that it gets past them" OFF)
set(MUSTER_SANITIZE "" CACHE STRING "Value for -fsanitize=, e.g. address,undefined")

add_library(muster_settings INTERFACE)
target_include_directories(muster_settings INTERFACE ${CMAKE_SOURCE_DIR})
# One binary has to run on every x86-64-v2 host, and its sums must not depend on where the compiler may fuse.
set(muster_compile_options -Wall -Wextra -Wno-missing-field-initializers -ffp-contract=off
  $<$<STREQUAL:${CMAKE_SYSTEM_PROCESSOR},x86_64>:-march=x86-64-v2>)
if(MUSTER_WERROR)
  list(APPEND muster_compile_options -Werror)
endif()
# nvcc takes other options, and what it compiles for the host computes nothing.
target_compile_options(muster_settings INTERFACE "$<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:${muster_compile_options}>")
if(MUSTER_FUZZ)
  target_compile_definitions(muster_settings INTERFACE FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION)
endif()
if(MUSTER_SANITIZE)
  target_compile_options(muster_settings INTERFACE -fsanitize=${MUSTER_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  # A million addresses of places in the source would have to be set at each start of a program that may lie anywhere.
  target_link_options(muster_settings INTERFACE -fsanitize=${MUSTER_SANITIZE} $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-no-pie>)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  # What one checkout has compiled serves the others, wherever they lie.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE_PROGRAM})
endif()
find_program(MOLD_PROGRAM mold)
if(MOLD_PROGRAM)
  add_link_options(-fuse-ld=mold)
endif()

# muster_library(NAME HEADERS ... SOURCES ... DEPS ...): one static library `muster_NAME`. A header that lacks an include fails the
# build: its source includes it first; one without a source is also compiled by itself (target all_verify_interface_header_sets).
function(muster_library name)
  cmake_parse_arguments(arg "" "" "HEADERS;SOURCES;DEPS" ${ARGN})
  add_library(muster_${name} STATIC ${arg_SOURCES})
  set(alone ${arg_HEADERS})
  foreach(source IN LISTS arg_SOURCES)
    string(REGEX REPLACE "\\.cc$" ".h" header ${source})
    list(REMOVE_ITEM alone ${header})
  endforeach()
  if(alone)
    target_sources(muster_${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${CMAKE_SOURCE_DIR} FILES ${alone})
    set_target_properties(muster_${name} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  endif()
  target_link_libraries(muster_${name} PUBLIC muster_settings ${arg_DEPS})
endfunction()

# muster_computes(NAME): optimizes the loops of `muster_NAME` in sanitizers' builds too. Tests spend most of their time in them.
function(muster_computes name)
  target_compile_options(muster_${name} PRIVATE -O2)
endfunction()

# What the thread sanitizer needs: building the rest under it would take minutes for nothing.
add_custom_target(muster_core_tests)

# What has to be tested without sanitizers too: bounds of memory, which they enlarge, and the loops a compiler vectorizes.
add_custom_target(muster_optimized_tests)

# The module for CUDA, its tests and its benchmark.
add_custom_target(muster_cuda_all)

# muster_test(NAME SOURCES ... DEPS ... [LABELS ...] [TIMEOUT s] [PREFIX p]): a GoogleTest program, one ctest entry per test case, with
# PREFIX before its name, where another program has the same tests.
# Label `core` marks what the thread sanitizer runs; `optimized` what .ci/run also runs without sanitizers; `cuda` what needs a GPU and is
# skipped without; `e2e` what starts real sshd or trainers; `move` those whose hosts change their addresses.
function(muster_test name)
  cmake_parse_arguments(arg "" "PREFIX;TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT BUILD_TESTING)
    return()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 300)
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE muster_settings ${arg_DEPS} muster_checkout GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  if("core" IN_LIST arg_LABELS)
    add_dependencies(muster_core_tests ${name})
  endif()
  if("optimized" IN_LIST arg_LABELS)
    add_dependencies(muster_optimized_tests ${name})
  endif()
  if("cuda" IN_LIST arg_LABELS)
    add_dependencies(muster_cuda_all ${name})
  endif()
  gtest_discover_tests(${name} TEST_PREFIX "${arg_PREFIX}" DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT ${arg_TIMEOUT})
  # Not as one of those properties: of a list only the first would arrive.
  set(labels_file ${CMAKE_CURRENT_BINARY_DIR}/${name}_labels.cmake)
  file(WRITE ${labels_file} "foreach(test IN LISTS ${name}_TESTS)\n  set_tests_properties(\"\${test}\" PROPERTIES LABELS \"${arg_LABELS}\")\nendforeach()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${labels_file})
endfunction()

# muster_test_sse41(NAME): the tests of NAME again, as NAME.../sse41, with what oneDNN and the loops that are chosen with its
# instruction set do on the least machine.
function(muster_test_sse41 name)
  if(NOT BUILD_TESTING)
    return()
  endif()
  gtest_discover_tests(${name} TEST_SUFFIX /sse41 TEST_LIST ${name}_sse41 DISCOVERY_TIMEOUT 60
    PROPERTIES TIMEOUT 300 LABELS optimized ENVIRONMENT DNNL_MAX_CPU_ISA=SSE41)
endfunction()
include(GoogleTest)

# muster_bundle(EXECUTABLE NAME [MODULES ...] [PROGRAMS ...]): what travels to hosts, in lib/muster/NAME: the executable with all its
# libraries and the modules that it loads, and static programs beside it. Target: EXECUTABLE-bundle.
function(muster_bundle executable name)
  cmake_parse_arguments(arg "" "" "MODULES;PROGRAMS" ${ARGN})
  # DT_RPATH, because DT_RUNPATH would not be used for the libraries that the libraries need: the bundle brings them all.
  target_link_options(${executable} PRIVATE -Wl,--disable-new-dtags)
  set_target_properties(${executable} PROPERTIES BUILD_RPATH "\$ORIGIN/../lib" INSTALL_RPATH "\$ORIGIN/../lib")
  set(bundle ${CMAKE_BINARY_DIR}/lib/muster/${name})
  set(modules)
  foreach(module IN LISTS arg_MODULES)
    list(APPEND modules $<TARGET_FILE:${module}>)
  endforeach()
  set(programs)
  foreach(program IN LISTS arg_PROGRAMS)
    list(APPEND programs COMMAND ${CMAKE_COMMAND} -E copy $<TARGET_FILE:${program}> ${bundle}/bin)
  endforeach()
  add_custom_command(OUTPUT ${bundle}.stamp
    COMMAND ${CMAKE_SOURCE_DIR}/scripts/make_bundle.sh $<TARGET_FILE:${executable}> ${bundle} ${modules}
    ${programs}
    COMMAND ${CMAKE_COMMAND} -E touch ${bundle}.stamp
    DEPENDS ${executable} ${arg_MODULES} ${arg_PROGRAMS} ${CMAKE_SOURCE_DIR}/scripts/make_bundle.sh VERBATIM)
  add_custom_target(${executable}-bundle ALL DEPENDS ${bundle}.stamp)
endfunction()
