# prebr: `make` builds the trainers, `make test` runs the tests, `make demo` shows the whole thing, `make bench` measures it.
#
#   make                     ./train_vit, ./train_bert, data/pack_images
#   make test                build/test/*, then ctest (real data is looked for in $PREBR_TEST_DATA)
#   make demo                scripts/demo.sh: Fashion-MNIST, four presets, about two minutes
#   make bench               the speed table, beside PyTorch where it is installed
#   make SANITIZE=1 test     the same under address and undefined sanitizers
#   make BACKEND=cuda        the trainers for a GPU, with nvcc (cpu: without; by default: cuda where there are nvcc and a GPU)
#   make BACKEND=cuda PRECISION=fp32   in float; by default activations and the copies of weights that products read are bf16
#   make clean

CC = gcc
CXX = g++
NVCC := $(firstword $(wildcard $(shell command -v nvcc) /usr/local/cuda/bin/nvcc))
GPU := $(if $(NVCC),$(shell nvidia-smi -L 2>/dev/null | grep -c '^GPU'))
BACKEND = $(if $(filter-out 0,$(GPU)),cuda,cpu)
BUILD = build
ifeq ($(BACKEND)$(NVCC),cuda)
$(error BACKEND=cuda needs nvcc: install the CUDA toolkit, or put nvcc on the PATH)
endif

WARN = -Wall -Wextra -Wno-unused-parameter -Wno-unused-function
FLAGS = -O3 -march=native -fopenmp -fno-math-errno -fno-trapping-math -g $(WARN) -MMD -MP
LIBS = -ldnnl -lcjson -lz -lm -lpthread -fopenmp
ifdef SANITIZE
BUILD = build/sanitize
FLAGS += -O1 -fsanitize=address,undefined -fno-sanitize-recover=undefined
LIBS += -fsanitize=address,undefined
endif

KERNELS = $(patsubst %.c,$(BUILD)/%.o,$(wildcard kernels/*.c))
DATA = $(patsubst %.c,$(BUILD)/%.o,$(filter-out data/pack_images.c,$(wildcard data/*.c)))
TESTS = $(patsubst test/%.c,$(BUILD)/test/%,$(wildcard test/test_*.c))
TRAINERS = $(patsubst %.cu,%,$(wildcard train_*.cu))
TOOLS = $(patsubst %.c,%,$(wildcard data/pack_images.c))
ifdef SANITIZE
TRAINERS := $(TRAINERS:%=$(BUILD)/%)
TOOLS := $(TOOLS:%=$(BUILD)/%)
endif

all: $(TRAINERS) $(TOOLS)

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) -std=gnu11 $(FLAGS) -c $< -o $@

# A trainer is one .cu file in the common subset of C and C++; here the host compiler takes it.
$(BUILD)/train_%.o: train_%.cu
	@mkdir -p $(@D)
	$(CXX) -x c++ -std=gnu++17 $(FLAGS) -Wno-missing-field-initializers -c $< -o $@

# For a GPU nvcc takes trainers and kernels. Without one in this machine: code for every generation that the toolkit knows.
CUDA_ARCH = $(if $(filter-out 0,$(GPU)),native,all-major)
PRECISION = bf16
CUDA = build/cuda-$(PRECISION)
# The libraries are looked for again where the toolkit was.
CUDA_LIBS = -lcublasLt -lcublas -Xlinker -rpath=$(abspath $(dir $(realpath $(NVCC)))../lib64)
CUDA_KERNELS = $(patsubst %.cu,$(CUDA)/%.o,$(wildcard kernels/*.cu))
$(CUDA)/%.o: %.cu
	@mkdir -p $(@D)
	$(NVCC) -O3 -std=c++17 -arch=$(CUDA_ARCH) $(if $(filter bf16,$(PRECISION)),-DPREBR_BF16) -lineinfo -Xcompiler -fopenmp -MMD -MP -c $< -o $@

# What scripts/gpu_check.sh runs on a card.
$(CUDA)/test_ops: $(CUDA)/test/cuda_on_cpu/test_ops.o $(CUDA_KERNELS)
	$(NVCC) -arch=$(CUDA_ARCH) $^ $(CUDA_LIBS) -lm -Xcompiler -fopenmp -o $@
$(CUDA)/bench_copy: $(CUDA)/test/bench_copy.o
	$(NVCC) $^ -o $@
$(CUDA)/test/%.o: NVCC += -I.
gpu_tests: $(CUDA)/test_ops $(CUDA)/bench_copy

# The programs at the top are of the backend that they were last made for.
MADE_FOR = $(BACKEND) $(if $(filter cuda,$(BACKEND)),$(PRECISION))
$(shell mkdir -p build && echo $(MADE_FOR) | cmp -s - build/backend || echo $(MADE_FOR) >build/backend)
ifeq ($(BACKEND),cuda)
train_%: $(CUDA)/train_%.o $(CUDA_KERNELS) $(DATA) build/backend
	$(NVCC) -arch=$(CUDA_ARCH) $(filter %.o,$^) $(CUDA_LIBS) -lcjson -lz -lm -lpthread -Xcompiler -fopenmp -o $@
else
train_%: $(BUILD)/train_%.o $(KERNELS) $(DATA) build/backend
	$(CXX) $(filter %.o,$^) $(LIBS) -o $@
endif
$(BUILD)/train_%: $(BUILD)/train_%.o $(KERNELS) $(DATA)
	$(CXX) $^ $(LIBS) -o $@

data/% $(BUILD)/data/%: $(BUILD)/data/%.o $(DATA)
	$(CXX) $^ $(filter-out -ldnnl,$(LIBS)) -o $@

$(BUILD)/test/%: $(BUILD)/test/%.o $(KERNELS) $(DATA)
	$(CXX) $^ $(LIBS) -o $@

$(BUILD)/test/%.o: test/%.c
	@mkdir -p $(@D)
	$(CC) -std=gnu11 $(FLAGS) -I. -c $< -o $@

# The CUDA kernels and the host code on top of them, compiled by the host compiler against test/cuda_on_cpu, which executes them; always
# with the address sanitizer, which sees accesses out of bounds of device and shared memory. In fp32, and in bf16 under build/cuda_on_cpu_bf16.
EMULATED = build/cuda_on_cpu
EMULATED_FLAGS = -O2 -DGEMM_WORKSPACE=65536 -Wno-unknown-pragmas -march=native -fopenmp -g -fsanitize=address -fno-omit-frame-pointer $(WARN) -MMD -MP
EMULATED_SOURCES = $(wildcard kernels/*.cu test/cuda_on_cpu/*.cpp)
EMULATED_DATA = $(patsubst %.c,$(EMULATED)/%.o,$(filter-out data/pack_images.c,$(wildcard data/*.c)))
CUDA_TESTED = $(filter-out kernels/device.cu kernels/tanh.cu,$(wildcard kernels/*.cu))   # test_gemm and test_dropout see to these two
CUDA_TESTS = $(CUDA_TESTED:kernels/%.cu=$(EMULATED)/test/test_%) $(EMULATED)/test/test_prebr $(EMULATED)/test/test_executor $(EMULATED)/test/test_ops $(EMULATED)_bf16/test/test_ops $(EMULATED)_bf16/test/test_mma
CUDA_TRAINERS = $(foreach trainer,$(TRAINERS),$(EMULATED)/$(trainer) $(EMULATED)_bf16/$(trainer))

# $(1): where to; $(2): further flags.
define emulate
$(1)/%.o: %.cu
	@mkdir -p $$(@D)
	$(CXX) -x c++ -std=gnu++17 $$(EMULATED_FLAGS) $(2) -Wno-missing-field-initializers -Itest/cuda_on_cpu -c $$< -o $$@

$(1)/%.o: %.cpp
	@mkdir -p $$(@D)
	$(CXX) -std=gnu++17 $$(EMULATED_FLAGS) -c $$< -o $$@

$(1)/test/%.o: test/cuda_on_cpu/%.cu
	@mkdir -p $$(@D)
	$(CXX) -x c++ -std=gnu++17 $$(EMULATED_FLAGS) $(2) -I. -Itest/cuda_on_cpu -c $$< -o $$@

# The executor itself goes without: it switches stacks, and it is what costs time.
$(1)/test/cuda_on_cpu/executor.o: EMULATED_FLAGS += -fno-sanitize=address

$(1)/test/%: $(1)/test/%.o $(patsubst %,$(1)/%.o,$(basename $(EMULATED_SOURCES))) $(EMULATED_DATA)
	$(CXX) -fsanitize=address $$^ $(LIBS) -o $$@

$(1)/train_%: $(1)/train_%.o $(patsubst %,$(1)/%.o,$(basename $(EMULATED_SOURCES))) $(EMULATED_DATA)
	$(CXX) -fsanitize=address $$^ $(LIBS) -o $$@
endef
$(eval $(call emulate,$(EMULATED)))
$(eval $(call emulate,$(EMULATED)_bf16,-DPREBR_BF16))

$(EMULATED)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) -std=gnu11 $(EMULATED_FLAGS) -I. -c $< -o $@

tests: $(TESTS)

cuda_tests: $(CUDA_TESTS)

ifndef SANITIZE
test: $(CUDA_TESTS) $(CUDA_TRAINERS)
endif
test: all tests
	GOMP_SPINCOUNT=3000 BUILD=$(CURDIR)/$(BUILD) ctest --test-dir test --no-tests=error --output-on-failure

demo:
	scripts/demo.sh

# PyTorch's side needs scripts/setup.sh --python; the checkpoint and the images lie in $$PREBR_TEST_DATA or data-sets/ (scripts/fetch_data.sh).
bench: all $(BUILD)/test/bench_gemm
	scripts/bench_vit.py

clean:
	rm -rf build train_vit train_bert data/pack_images test/Testing

.PHONY: all test tests cuda_tests gpu_tests clean demo bench
.SECONDARY:
-include $(shell find build -name '*.d' 2>/dev/null)
