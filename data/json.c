#define _GNU_SOURCE
#include "json.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LARGEST_FILE = 64 << 20 };   // bytes; a config.json with 20,000 class names has one or two million

cJSON* json_read(const char* path) {
    FILE* f = fopen(path, "rbe");
    if (!f) trouble("%s: cannot be opened: %s", path, strerror(errno));
    size_t n = 0, room = 1 << 16, got;
    char* text = allocate(room, 1);
    while ((got = fread(text + n, 1, room - 1 - n, f)) > 0) {
        n += got;
        if (n > LARGEST_FILE) trouble("%s: more than %d MiB: this is not a configuration", path, LARGEST_FILE >> 20);
        if (n == room - 1 && !(text = realloc(text, room *= 2))) trouble("%s: out of memory", path);
    }
    if (ferror(f)) trouble("%s: cannot be read: %s", path, strerror(errno));
    fclose(f);
    text[n] = 0;

    const char* end = text;
    cJSON* object = cJSON_ParseWithOpts(text, &end, 1);
    if (!cJSON_IsObject(object)) {
        int line = 1;
        for (const char* c = text; !object && c < end; c++) line += *c == '\n';
        trouble("%s: line %d: %s; download or write it again", path, line, object ? "not a JSON object" : "not valid JSON");
    }
    free(text);
    return object;
}

void json_write(const char* path, cJSON* object) {
    char *text = cJSON_Print(object), *temporary = format_string("%s.tmp", path);
    FILE* f = fopen(temporary, "wbe");
    int failed = !f || !text || fputs(text, f) < 0 || fputc('\n', f) < 0 || fflush(f) || fsync(fileno(f));
    if (failed || fclose(f) || rename(temporary, path)) {
        int error = text ? errno : ENOMEM;
        unlink(temporary);
        trouble("%s: cannot be written: %s; make room or name another directory", path, strerror(error));
    }
    free(text);
    free(temporary);
    cJSON_Delete(object);
}

const cJSON* json_member(const cJSON* object, const char* name) {
    const cJSON* item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNull(item) ? NULL : item;
}

NORETURN static void wrong_member(const char* path, const char* name, const cJSON* item, const char* expected) {
    char* text = item ? cJSON_PrintUnformatted(item) : NULL;
    if (!item) trouble("%s: %s is missing; %s is expected", path, name, expected);
    trouble("%s: %s is %.60s; %s is expected", path, name, text ? text : "unreadable", expected);
}

int json_int(const char* path, const cJSON* object, const char* name, int fallback, int least, int most) {
    const cJSON* item = json_member(object, name);
    if (!item && fallback != JSON_NEEDED) return fallback;
    double d = cJSON_IsNumber(item) ? item->valuedouble : NAN;
    if (d >= least && d <= most && d == floor(d)) return (int)d;
    char expected[80];
    snprintf(expected, sizeof expected, "a whole number from %d to %d", least, most);
    wrong_member(path, name, item, expected);
}

double json_number(const char* path, const cJSON* object, const char* name, double fallback) {
    const cJSON* item = json_member(object, name);
    if (!item && fallback != JSON_NEEDED) return fallback;
    if (!cJSON_IsNumber(item) || !isfinite(item->valuedouble)) wrong_member(path, name, item, "a number");
    return item->valuedouble;
}

int json_bool(const char* path, const cJSON* object, const char* name, int fallback) {
    const cJSON* item = json_member(object, name);
    if (!item && fallback != JSON_NEEDED) return fallback;
    if (!cJSON_IsBool(item)) wrong_member(path, name, item, "true or false");
    return cJSON_IsTrue(item);
}

const char* json_text(const char* path, const cJSON* object, const char* name, const char* fallback) {
    const cJSON* item = json_member(object, name);
    if (!item) return fallback;
    if (!cJSON_IsString(item)) wrong_member(path, name, item, "a text");
    return item->valuestring;
}

void json_floats(const char* path, const cJSON* object, const char* name, float* out, int n) {
    const cJSON *item = json_member(object, name), *number;
    int i = 0;
    char expected[40];
    if (!item) return;
    snprintf(expected, sizeof expected, "a list of %d numbers", n);
    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != n) wrong_member(path, name, item, expected);
    cJSON_ArrayForEach(number, item) {
        if (!cJSON_IsNumber(number) || !isfinite((float)number->valuedouble)) wrong_member(path, name, item, expected);
        out[i++] = (float)number->valuedouble;
    }
}

cJSON* json_float(float value) {
    char text[40];
    int digits = 6;
    do snprintf(text, sizeof text, "%.*g", digits, value);
    while (strtof(text, NULL) != value && digits++ < 9);
    return cJSON_CreateRaw(text);
}

cJSON* json_float_list(const float* values, int n) {
    cJSON* list = cJSON_CreateArray();
    for (int i = 0; i < n; i++) cJSON_AddItemToArray(list, json_float(values[i]));
    return list;
}
