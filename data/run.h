// A run seen from outside: its directory, its log, its progress line, and files that are never half written.
//
//   log.csv       one line a step: step,epoch,loss,lr,grad_norm,accuracy,ms,samples_per_s,kept_bytes,peak_bytes
//                 (accuracy is empty but on steps after which the test split was evaluated)
//   options.txt   every option with its value
//   model/        Hugging Face directory, the last state;  model-best/ the best by test accuracy
//   state/        what --resume needs
#ifndef PREBR_RUN_H
#define PREBR_RUN_H

#include <stdint.h>
#include <stdio.h>
#include "trouble.h"

C_BEGIN

typedef struct {
    int64_t step;           // 1 for the first
    double epoch;           // epochs done after this step, e.g. 0.25
    double loss, lr, grad_norm;
    double accuracy;        // of the test split, 0 .. 1; or NAN
    double ms, samples_per_s;
    size_t kept_bytes, peak_bytes;
} LogLine;

typedef struct Log Log;

// Opens DIR/log.csv. step = 0: a new log (an existing one is trouble unless overwrite). step > 0: keeps the lines up to that step
// and goes on after them. dir NULL: no file, only the console. total = number of steps, for the ETA.
// every: in a pipe one console line every so many steps.
Log* log_open(const char* dir, int64_t step, int64_t total, int every, int overwrite);
// Writes one line to the file (flushed, numbers in %.9g) and one to the console: a progress line that redraws itself on a terminal
// (loss, accuracy, samples/s, memory, ETA), else every N steps.
void log_step(Log* l, const LogLine* line);
// A message line on the console that does not disturb the progress line.
void log_message(Log* l, const char* format, ...) __attribute__((format(printf, 2, 3)));
void log_close(Log* l);

// Files under a temporary name until file_finish (fsync, rename, fsync of the directory). A symbolic link is followed; a terminal, a pipe or a
// device is written to as it is. A full disk or a missing permission is trouble.
FILE* file_create(const char* path);
void file_finish(FILE* f, const char* path);
void file_abandon(FILE* f, const char* path);   // instead of file_finish: nothing has happened
// mkdir -p or trouble.
void directory_make(const char* path);
// An empty directory of that name, whatever was there before: where the next state is written before directory_replace.
void directory_fresh(const char* path);
// Removes it with all that is in it; nothing where there is none.
void directory_remove(const char* path);
// Swaps a completely written directory `from` into place as `to` (the old one, if any, is removed last): a crash leaves the old or the
// new one under the name, never a mixture or a half. (Where the file system cannot exchange two names the old one is called to.old for a moment, and a
// crash may leave it so.)
void directory_replace(const char* from, const char* to);
// Finishes or undoes a directory_replace that a crash interrupted. For whoever writes `to`: a directory to.old is taken for its own.
void directory_recover(const char* to);
// Keeps other processes that ask for it from the directory until this one ends; trouble when another has it.
void directory_lock(const char* path);

// A run's directory `out` before anything is loaded: made, unless the run is resumed, and kept from other processes. Trouble where a run is already
// there, or where the run would replace the model it starts from.
void run_claim(const char* out, const char* model, int resume, int overwrite);
// What an earlier run left there, but for its log and options, is removed, and state/ is made: when nothing can go wrong any more.
void run_clear(const char* out);

// SIGINT and SIGTERM are noted; 0, or the signal that arrived. A second one ends the program at once. SIGXFSZ is ignored. To be called
// before anything starts a thread: those started later leave the two signals alone, as they must (see run.c).
void signals_watch(void);
int signal_seen(void);

// FNV-1a of n bytes, going on from `hash` (HASH_START for the first): whether data is still what it was.
#define HASH_START 0xcbf29ce484222325u
uint64_t hash_bytes(uint64_t hash, const void* bytes, size_t n);

// Bytes this process holds at most so far (VmHWM), and a size for people: "1.37 GiB".
size_t process_peak_bytes(void);
const char* human_bytes(size_t bytes, char buffer[32]);

C_END

#endif
