# CUDA, where nvcc is found and no sanitizer is on (CUDA does not start under the address sanitizer's defaults). Sets MUSTER_CUDA.
#
# Machine code for Hopper; the driver compiles the rest from PTX when a program starts: 7.5 is the oldest that CUDA 13
# supports, 8.0 the first with TF32.
find_program(MUSTER_NVCC nvcc HINTS ENV CUDACXX ENV CUDA_HOME PATH_SUFFIXES bin PATHS /usr/local/cuda/bin)
option(MUSTER_REQUIRE_CUDA "Fail where nvcc is not found" OFF)
if(MUSTER_REQUIRE_CUDA AND NOT MUSTER_NVCC)
  message(FATAL_ERROR "nvcc is neither in PATH, nor in CUDA_HOME/bin, nor in /usr/local/cuda/bin")
endif()
set(MUSTER_CUDA OFF)
if(MUSTER_NVCC AND NOT MUSTER_SANITIZE)
  set(CMAKE_CUDA_COMPILER ${MUSTER_NVCC})
  set(CMAKE_CUDA_ARCHITECTURES 75-virtual 80-virtual 90-real)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
  # CMake 3.25 does not know how nvcc is told.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA_STANDARD 20)
  set(MUSTER_CUDA ON)
endif()
message(STATUS "CUDA: ${MUSTER_CUDA}")

# With its headers alone, CUDA can be made up for tests (kernels/cuda/fake_cuda.h): under sanitizers too, and without a GPU.
find_path(MUSTER_CUDA_HEADERS cublasLt.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV CUDA_HOME PATH_SUFFIXES include PATHS /usr/local/cuda/include)
message(STATUS "CUDA's headers, for tests without a GPU: ${MUSTER_CUDA_HEADERS}")
