# The list of tests for ctest, read as it stands: every test program that Make built, then every test/test_*.sh.
# $BUILD is the build directory (Makefile). A test that exits with 77 is reported as skipped.
# (ctest runs this in test/ and sets no CMAKE_ variable with the directory; what GLOB gives has absolute paths.)
file(GLOB sources test_*.c test_*.sh)
foreach(source ${sources})
  get_filename_component(here ${source} DIRECTORY)
  get_filename_component(name ${source} NAME_WE)
  get_filename_component(kind ${source} EXT)
  if(kind STREQUAL ".c")
    add_test(${name} $ENV{BUILD}/test/${name})
  else()
    add_test(${name} ${source})
  endif()
  set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 WORKING_DIRECTORY ${here}/..)
endforeach()

# The CUDA kernels' tests: the same sources, linked with the kernels that test/cuda_on_cpu executes. The programs that Make built. They
# leave lists of what they launched, which test_cuda_coverage adds up.
file(GLOB programs $ENV{BUILD}/cuda_on_cpu/test/test_* $ENV{BUILD}/cuda_on_cpu_bf16/test/test_*)
foreach(program ${programs})
  get_filename_component(name ${program} NAME)
  if(name MATCHES "^test_[a-z_0-9]+$")
    string(REPLACE "test_" "cuda_" name ${name})
    add_test(${name} ${program})
    set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77 ENVIRONMENT CUDA_ON_CPU_COVERAGE=${program}.launches)
    list(APPEND counted ${name})
  endif()
endforeach()
set_tests_properties(test_cuda_coverage PROPERTIES DEPENDS "${counted}")
