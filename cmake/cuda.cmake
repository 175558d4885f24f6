# The kernels for GPUs: found nvcc compiles kernels/cuda/*.cu into one image
# that the library carries; without nvcc the image is empty and all else the
# same.
#
#   ALQ_NVCC          nvcc; OFF: build without.  Default: of the system, else
#                     of `scripts/setup --with cuda`
#   ALQ_CUDA_ARCHS    what machine code is made for; PTX of the last
#   ALQ_CUDA_FMAD     ON: fused multiply-add, faster by little and not the same
#                     bits as the CPU
set(ALQ_CUDA_ARCHS "80;90" CACHE STRING "Architectures of the GPU kernels")
option(ALQ_CUDA_FMAD "Let GPU kernels fuse multiply and add" OFF)
file(GLOB ALQ_NVCC_OF_WHEEL
  ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/cu13/bin)
find_program(ALQ_NVCC nvcc
  HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin
  PATHS /usr/local/cuda/bin ${ALQ_NVCC_OF_WHEEL}
  DOC "The CUDA compiler, or OFF")

set(ALQ_CUDA_KERNELS)
foreach(name accumulate adamw cast cast_within copy fill finite norm sgd stamp
    step)
  list(APPEND ALQ_CUDA_KERNELS ${PROJECT_SOURCE_DIR}/kernels/cuda/${name}.cu)
endforeach()
set(ALQ_CUDA_HEADERS
  ${PROJECT_SOURCE_DIR}/kernels/cuda/any.h
  ${PROJECT_SOURCE_DIR}/kernels/cuda/bins_merge.h
  ${PROJECT_SOURCE_DIR}/kernels/cuda/device.h
  ${PROJECT_SOURCE_DIR}/kernels/cuda/memory.h
  ${PROJECT_SOURCE_DIR}/kernels/cuda/move.h
  ${PROJECT_SOURCE_DIR}/kernels/cuda/stream.h
  ${PROJECT_SOURCE_DIR}/kernels/cuda/window.h)

# alq_nvcc_flags(out): what every compilation of kernels shares.
function(alq_nvcc_flags out)
  set(flags -std=c++20 -Xcompiler=-Wall,-Wextra,-Wconversion,-Wshadow,-Werror
    -Werror all-warnings
    -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR}/src
    -I${PROJECT_SOURCE_DIR})
  if(NOT ALQ_CUDA_FMAD)
    list(APPEND flags -fmad=false)
  endif()
  foreach(arch ${ALQ_CUDA_ARCHS})
    list(APPEND flags -gencode arch=compute_${arch},code=sm_${arch})
  endforeach()
  list(GET ALQ_CUDA_ARCHS -1 newest)
  list(APPEND flags -gencode arch=compute_${newest},code=compute_${newest})
  set(${out} ${flags} PARENT_SCOPE)
endfunction()

# alq_cuda_fatbin(target KERNELS ... HEADERS ... INCLUDE folder... IMAGE file
# NONE file DEFINE macro): compiles the kernels into one image and gives the
# target IMAGE, a source that takes in the file that the macro names; without
# nvcc it is given NONE.
function(alq_cuda_fatbin target)
  cmake_parse_arguments(ARG "" "IMAGE;NONE;DEFINE" "KERNELS;HEADERS;INCLUDE"
    ${ARGN})
  if(NOT ALQ_NVCC)
    target_sources(${target} PRIVATE ${ARG_NONE})
    return()
  endif()
  set(dir ${CMAKE_CURRENT_BINARY_DIR}/cuda)
  set(image ${dir}/kernels.fatbin)
  # One compilation, for the driver loads one image.
  set(all "// All kernels.\n")
  foreach(kernel ${ARG_KERNELS})
    string(APPEND all "#include \"${kernel}\"\n")
  endforeach()
  file(CONFIGURE OUTPUT ${dir}/kernels.cu CONTENT "${all}")
  alq_nvcc_flags(flags)
  foreach(folder ${ARG_INCLUDE})
    list(APPEND flags -I${folder})
  endforeach()
  execute_process(COMMAND ${ALQ_NVCC} --help OUTPUT_VARIABLE help)
  if(help MATCHES "compress-mode")
    list(APPEND flags -compress-mode=size)
  endif()
  list(GET ALQ_CUDA_ARCHS -1 newest)
  # What ptxas says of registers, and the PTX, are for scripts/cuda-resources.
  add_custom_command(OUTPUT ${image} ${dir}/kernels.log ${dir}/kernels.ptx
    COMMAND ${CMAKE_COMMAND} -E make_directory ${dir}/keep
    COMMAND ${ALQ_NVCC} ${flags} -Xptxas -v -fatbin -o ${image}
      --keep --keep-dir ${dir}/keep ${dir}/kernels.cu > ${dir}/kernels.log 2>&1
      || (cat ${dir}/kernels.log && false)
    COMMAND ${CMAKE_COMMAND} -E copy ${dir}/keep/kernels.compute_${newest}.ptx
      ${dir}/kernels.ptx
    COMMAND ${CMAKE_COMMAND} -E rm -r ${dir}/keep
    DEPENDS ${dir}/kernels.cu ${ARG_KERNELS} ${ARG_HEADERS}
    COMMENT "Compiling the GPU kernels of ${target}")
  target_sources(${target} PRIVATE ${ARG_IMAGE} ${image})
  set_source_files_properties(${ARG_IMAGE} PROPERTIES
    OBJECT_DEPENDS ${image}
    COMPILE_DEFINITIONS ${ARG_DEFINE}="${image}")
endfunction()

# alq_cuda_image(target): gives it the library's own.
function(alq_cuda_image target)
  if(ALQ_NVCC)
    message(STATUS "CUDA: kernels for sm_${ALQ_CUDA_ARCHS} by ${ALQ_NVCC}")
  else()
    message(STATUS "CUDA: no nvcc; the library has no kernels for GPUs "
      "(scripts/setup --with cuda)")
  endif()
  set(dir ${PROJECT_SOURCE_DIR}/kernels)
  file(GLOB arithmetic ${dir}/arithmetic/*.h)
  alq_cuda_fatbin(${target} KERNELS ${ALQ_CUDA_KERNELS}
    HEADERS ${ALQ_CUDA_HEADERS} ${arithmetic} ${dir}/ops.h
    IMAGE ${dir}/cuda/image.cc NONE ${dir}/cuda/image_none.cc
    DEFINE ALQ_CUDA_IMAGE)
endfunction()
