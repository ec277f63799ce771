// The machine that computes: its memory, its clock, its number formats.
//
// Every pointer an op takes is device memory unless its comment says "host". On the CPU backend both are the same
// memory. The trainers allocate exactly once (the arena), so these calls stand outside every loop.
#ifndef PREBR_DEVICE_H
#define PREBR_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#ifndef C_BEGIN
#ifdef __cplusplus
#define C_BEGIN extern "C" {
#define C_END }
#else
#define C_BEGIN
#define C_END
#endif
#endif

// Element type of activations and of the weights and biases that a linear layer reads: bfloat16 in the CUDA build with PRECISION=bf16, else
// float. Statistics, gradients of parameters, master weights and moments are always float, and so is all arithmetic.
#ifdef PREBR_BF16
#include <cuda_bf16.h>
typedef __nv_bfloat16 floatx;
#else
typedef float floatx;
#endif

C_BEGIN

// The first thing in main, with its argv. On the CPU: OpenMP's threads spin for milliseconds between two parallel loops before they sleep, which
// takes the processor from others, and on a machine that is shared from ourselves (measured: 2.5 times slower beside two busy
// processes). How long they spin is read from GOMP_SPINCOUNT before main begins, so the program sets it, where neither it nor
// OMP_WAIT_POLICY is set, and starts itself again.
void device_prepare(char** argv);

// "cpu, 2 threads, oneDNN 2.6.3" or the like; for the first line of a run.
const char* device_name(void);

// n >= 1 sets the number of compute threads (16 at most, or four for each processor where that is more), 0 leaves the machine's own number; returns the number in use.
int device_threads(int n);

// bytes of zeroed memory aligned to 64, or NULL when there is not that much.
void* device_alloc(size_t bytes);
void device_free(void* p, size_t bytes);

// bytes that could be allocated now without swapping (MemAvailable on the CPU); 0 where the system does not say.
size_t device_memory_available(void);

// Copies between host and device, fills, and waits for all work given out so far.
void device_upload(void* device, const void* host, size_t bytes);
void device_download(void* host, const void* device, size_t bytes);
void device_copy(void* to, const void* from, size_t bytes);
void device_zero(void* p, size_t bytes);
void device_sync(void);

// Uploads beside the compute, for the input of the step to come. After device_input_read() the uploads ahead may overwrite whatever the work given
// out so far reads; device_upload_ahead() returns when the host's bytes have been taken; work given out after device_upload_join() finds
// them there. Where host and device are the same there is nothing to be won: device_uploads_ahead() is 0, and the others do nothing.
int device_uploads_ahead(void);
void device_input_read(void);
void device_upload_ahead(void* device, const void* host, size_t bytes);
void device_upload_join(void);

// n elements of type floatx, as floats.
void device_download_floats(float* host, const floatx* device, size_t n);

// copy [n] = w [n], rounded to floatx.
void device_round(floatx* copy, const float* w, size_t n);

// Device memory as the host sees it, for loading and saving: p itself where both are the same memory, else a host copy. Closing a
// view with write = 1 brings what was written into the device's memory.
float* host_view_open(float* p, size_t n);
void host_view_close(float* view, float* p, size_t n, int write);

// Seconds since some fixed point, after a device_sync().
double device_seconds(void);

// Where the time of a step goes. timer_start(part) closes the part that was running; timer_stop() closes the last one.
// Parts add up over calls until timer_reset(). With timers off (the default) these calls cost one branch.
enum { TIME_GEMM, TIME_ATTENTION, TIME_NORM, TIME_ACTIVATION, TIME_SHEAR, TIME_OPTIMIZER, TIME_DATA, TIME_OTHER, TIME_PARTS };
void timer_enable(int on);
void timer_start(int part);
void timer_stop(void);
double timer_seconds(int part);
const char* timer_part_name(int part);
void timer_reset(void);

C_END

#endif
