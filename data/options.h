// GNU-style command lines from one table: parsing, --help by group with defaults, and the record in options.txt.
#ifndef PREBR_OPTIONS_H
#define PREBR_OPTIONS_H

#include <stdint.h>
#include <stdio.h>
#include "trouble.h"

C_BEGIN

typedef enum {
    OPTION_GROUP, OPTION_FLAG, OPTION_INT, OPTION_LONG, OPTION_FLOAT, OPTION_TEXT, OPTION_CHOICE,
    OPTION_PATH,            // a text that leads to a file or directory: recorded in full, so that a run can go on from elsewhere, and compared by where it leads
    OPTION_ARGUMENT,        // a word that is no option ("pack_images DIR OUT"): filled in the table's order, each one is needed
    OPTION_END
} OptionKind;

typedef struct {
    OptionKind kind;
    const char* name;       // long name without dashes; a GROUP's title
    char letter;            // short name or 0
    void* value;            // int*, int* (FLAG), int64_t*, double*, const char** (TEXT, PATH, ARGUMENT), int* (CHOICE: index)
    const char* argument;   // what --help calls the argument; CHOICE: "bandit|uniform|norm"
    const char* help;       // one line
    double least, most;     // numbers outside are a usage error; both 0: any number
    int meaning;            // 1: changing it changes what is computed (compared by --resume); 0: it does not
    int given;              // set by options_parse
} Option;

// Parses argv into the table (ending with OPTION_END). "--name value", "--name=value", "-x value", "-xvalue"; unambiguous prefixes
// are accepted; anything else, a number out of range or trailing garbage is a usage error that names the option and the range.
// Values found in the table before the call are the defaults that --help shows. --help and --version are answered here (exit 0).
// Arguments beyond the table's OPTION_ARGUMENTs are a usage error.
void options_parse(Option* table, int argc, char** argv, const char* synopsis, const char* version);

// "name = value" a line, every option of the table, text quoted as needed; what `options.txt` holds.
void options_write(const Option* table, FILE* f);
// Compares the file with the table: options with meaning = 1 that differ are trouble, naming each with both values; those that
// were not given on the command line take the file's value first. (A resumed run needs no option but --resume.)
// A file that lacks an option with meaning = 1, or has a line that fits no option, is trouble.
void options_resume(Option* table, const char* path);

Option* option_find(Option* table, const char* name);

C_END

#endif
