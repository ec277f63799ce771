// JSON files read and written through cJSON, with trouble that names the file and the member.
#ifndef PREBR_JSON_H
#define PREBR_JSON_H

#include <cjson/cJSON.h>
#include <limits.h>
#include "trouble.h"

C_BEGIN

// The whole file as one JSON object, or trouble (file, line). cJSON_Delete() it.
cJSON* json_read(const char* path);
// Writes the file whole or not at all (temporary name, sync, rename) or trouble, and deletes the object.
void json_write(const char* path, cJSON* object);

// Members of an object. `path` is for the message alone; object may be NULL (then nothing is a member); null counts as absent.
// Absent gives `fallback`, of the wrong kind or outside the range is trouble. JSON_NEEDED as the fallback makes absence trouble too.
enum { JSON_NEEDED = INT_MIN };
const cJSON* json_member(const cJSON* object, const char* name);
int json_int(const char* path, const cJSON* object, const char* name, int fallback, int least, int most);
double json_number(const char* path, const cJSON* object, const char* name, double fallback);
int json_bool(const char* path, const cJSON* object, const char* name, int fallback);
const char* json_text(const char* path, const cJSON* object, const char* name, const char* fallback);
// A list of exactly n numbers into out; leaves out as it is when absent.
void json_floats(const char* path, const cJSON* object, const char* name, float* out, int n);

// A number that reads back as the same float, as short as that can be (1e-06, not 9.99999997e-07).
cJSON* json_float(float value);
cJSON* json_float_list(const float* values, int n);

C_END

#endif
