// Command lines from a table: one setter for every kind of value serves the command line and options.txt alike.
#include "options.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_WIDTH = 100, LEFT_MOST = 28 };   // columns of --help: of a line, and of the options' own column at most

// Known to every program beside its table. They have no value: options_parse answers them.
static Option built_in[] = {
    {.kind = OPTION_GROUP, .name = "Other"},
    {.kind = OPTION_FLAG, .name = "help", .letter = 'h', .help = "show this and stop"},
    {.kind = OPTION_FLAG, .name = "version", .help = "show the version and stop"},
    {.kind = OPTION_END},
};

static int has_value(const Option* o) { return o->kind != OPTION_GROUP && o->kind != OPTION_END; }
static int is_text(const Option* o) { return o->kind == OPTION_TEXT || o->kind == OPTION_PATH || o->kind == OPTION_ARGUMENT; }
static int has_name(const Option* o) { return has_value(o) && o->kind != OPTION_ARGUMENT; }

Option* option_find(Option* table, const char* name) {
    for (Option* o = table; o->kind != OPTION_END; o++)
        if (has_value(o) && strcmp(o->name, name) == 0) return o;
    return NULL;
}

// ---- values from text and back ----

// The place of `text` among the values of "a|b|c", or -1.
static int choice_index(const char* values, const char* text) {
    size_t n = strlen(text);
    for (int i = 0;; i++) {
        size_t length = strcspn(values, "|");
        if (length == n && memcmp(values, text, n) == 0) return i;
        if (values[length] == 0) return -1;
        values += length + 1;
    }
}

// "a|b|c" as "a, b or c". A fresh string.
static char* choice_list(const char* values) {
    char* list = allocate(4 * strlen(values) + 1, 1);
    char* end = list;
    for (const char* p = values; *p; p++) {
        if (*p != '|') *end++ = *p;
        else end = stpcpy(end, strchr(p + 1, '|') ? ", " : " or ");
    }
    return list;
}

// The value number i of "a|b|c". A fresh string.
static char* choice_name(const char* values, int i) {
    for (; i > 0; i--) values += strcspn(values, "|") + 1;
    return format_string("%.*s", (int)strcspn(values, "|"), values);
}

static char* range_reason(const Option* o, const char* text) {
    const char* number = o->kind == OPTION_FLOAT ? "number" : "whole number";
    int limited = o->least != o->most;
    if (limited && o->most < 1e18 && o->least > -1e18)
        return format_string("takes a %s from %.16g to %.16g, not '%s'", number, o->least, o->most, text);
    if (limited && o->least > -1e18) return format_string("takes a %s of at least %.16g, not '%s'", number, o->least, text);
    if (limited && o->most < 1e18) return format_string("takes a %s of at most %.16g, not '%s'", number, o->most, text);
    return format_string("takes a %s, not '%s'", number, text);
}

// Stores `text` as the option's value. NULL, or a fresh string that says why it is none. Text is not copied.
static char* option_set(Option* o, const char* text) {
    char* end;
    errno = 0;
    if (is_text(o)) {
        *(const char**)o->value = text;
    } else if (o->kind == OPTION_CHOICE) {
        int i = choice_index(o->argument, text);
        if (i < 0) {
            char* list = choice_list(o->argument);
            char* reason = format_string("is one of %s, not '%s'", list, text);
            free(list);
            return reason;
        }
        *(int*)o->value = i;
    } else if (o->kind == OPTION_FLOAT) {
        double v = strtod(text, &end);
        int inside = o->least == o->most || (v >= o->least && v <= o->most);
        int vanished = errno == ERANGE && v == 0;
        if (end == text || *end || !isfinite(v) || !inside || vanished) return range_reason(o, text);
        *(double*)o->value = v;
    } else {   // FLAG, INT, LONG
        long long v = strtoll(text, &end, 10);
        int inside = o->least == o->most || ((double)v >= o->least && (double)v <= o->most);
        if (o->kind == OPTION_FLAG) inside = v == 0 || v == 1;
        if (o->kind == OPTION_INT) inside = inside && v >= INT_MIN && v <= INT_MAX;
        if (end == text || *end || errno || !inside) return range_reason(o, text);
        if (o->kind == OPTION_LONG) *(int64_t*)o->value = v;
        else *(int*)o->value = (int)v;
    }
    return NULL;
}

// The shortest decimal that reads back as the same double.
static char* shortest(double v) {
    for (int digits = 1;; digits++) {
        char* text = format_string("%.*g", digits, v);
        if (digits == 17 || strtod(text, NULL) == v) return text;
        free(text);
    }
}

// The value as people write it, a fresh string; NULL for a text that is not set.
static char* option_text(const Option* o) {
    switch (o->kind) {
        case OPTION_FLAG:
        case OPTION_INT: return format_string("%d", *(int*)o->value);
        case OPTION_LONG: return format_string("%lld", (long long)*(int64_t*)o->value);
        case OPTION_FLOAT: return shortest(*(double*)o->value);
        case OPTION_CHOICE: return choice_name(o->argument, *(int*)o->value);
        case OPTION_PATH: return *(const char**)o->value ? full_path(*(const char**)o->value) : NULL;
        default: return *(const char**)o->value ? format_string("%s", *(const char**)o->value) : NULL;
    }
}

// ---- --help ----

static char* left_column(const Option* o) {
    const char* argument = o->kind == OPTION_FLAG ? "" : o->kind == OPTION_CHOICE ? "NAME" : o->argument ? o->argument : "VALUE";
    const char* space = *argument ? " " : "";
    if (o->kind == OPTION_ARGUMENT) return format_string("  %s", o->argument ? o->argument : o->name);
    if (o->letter) return format_string("  -%c, --%s%s%s", o->letter, o->name, space, argument);
    return format_string("      --%s%s%s", o->name, space, argument);
}

// What it does, the values of a choice, and the default in brackets.
static char* right_column(const Option* o) {
    char* list = o->kind == OPTION_CHOICE ? choice_list(o->argument) : NULL;
    char* value = o->kind == OPTION_ARGUMENT || o->value == NULL ? NULL : option_text(o);
    if (value && o->kind == OPTION_FLAG) strcpy(value, "");
    int shown = value && *value;
    char* text = format_string("%s%s%s%s%s%s", o->help ? o->help : "", list ? ": " : "", list ? list : "", shown ? " [" : "",
                               shown ? value : "", shown ? "]" : "");
    free(list);
    free(value);
    return text;
}

// Prints words from column `indent` on, broken so that no line passes LINE_WIDTH (but for a single longer word).
static void print_wrapped(const char* text, int indent) {
    int column = indent;
    while (*text) {
        int word = (int)strcspn(text, " ");
        if (column > indent && column + 1 + word > LINE_WIDTH) {
            printf("\n%*s", indent, "");
            column = indent;
        }
        if (column > indent) column += printf(" ");
        column += printf("%.*s", word, text);
        text += word;
        text += strspn(text, " ");
    }
    printf("\n");
}

static void print_table(const Option* table, int width) {
    for (const Option* o = table; o->kind != OPTION_END; o++) {
        if (o->kind == OPTION_GROUP) {
            printf("\n%s:\n", o->name);
            continue;
        }
        char *left = left_column(o), *right = right_column(o);
        if ((int)strlen(left) <= width) printf("%-*s  ", width, left);
        else printf("%s\n%*s", left, width + 2, "");
        print_wrapped(right, width + 2);
        free(left);
        free(right);
    }
}

static void help_and_exit(const Option* table, const char* synopsis) {
    int width = 0;
    for (const Option* o = table; o->kind != OPTION_END; o++) {
        char* left = has_value(o) ? left_column(o) : NULL;
        int length = left ? (int)strlen(left) : 0;
        if (length > width && length <= LEFT_MOST) width = length;
        free(left);
    }
    printf("Usage: %s\n", synopsis);
    print_table(table, width);
    print_table(built_in, width);
    exit(fflush(stdout) ? 1 : 0);
}

// ---- the command line ----

// The option with that name, else the only one that begins so; whatever else is a usage error.
static Option* find_long(Option* table, const char* name, size_t length) {
    Option* found = NULL;
    Option* other = NULL;
    Option* tables[2] = {table, built_in};
    for (int t = 0; t < 2; t++)
        for (Option* o = tables[t]; o->kind != OPTION_END; o++) {
            if (!has_name(o) || strncmp(o->name, name, length)) continue;
            if (o->name[length] == 0) return o;
            other = found;
            found = o;
        }
    if (!found) usage_error("there is no option --%.*s; --help lists them", (int)length, name);
    if (other) usage_error("--%.*s may be --%s or --%s: write more of it", (int)length, name, other->name, found->name);
    return found;
}

static Option* find_letter(Option* table, char letter) {
    Option* tables[2] = {table, built_in};
    for (int t = 0; t < 2; t++)
        for (Option* o = tables[t]; o->kind != OPTION_END; o++)
            if (has_name(o) && o->letter == letter) return o;
    usage_error("there is no option -%c; --help lists them", letter);
}

static void give(Option* o, const char* text) {
    char* reason = option_set(o, text);
    if (reason) usage_error("--%s %s", o->name, reason);
    o->given = 1;
}

static void answer(const Option* o, const Option* table, const char* synopsis, const char* version) {
    if (o == &built_in[1]) help_and_exit(table, synopsis);
    if (o != &built_in[2]) return;
    printf("%s\n", version);
    exit(fflush(stdout) ? 1 : 0);
}

// The next OPTION_ARGUMENT after `last` (NULL: the first), or NULL.
static Option* next_argument(Option* table, Option* last) {
    for (Option* o = last ? last + 1 : table; o->kind != OPTION_END; o++)
        if (o->kind == OPTION_ARGUMENT) return o;
    return NULL;
}

void options_parse(Option* table, int argc, char** argv, const char* synopsis, const char* version) {
    Option* argument = next_argument(table, NULL);
    int only_arguments = 0;   // after "--"
    for (int i = 1; i < argc; i++) {
        char* word = argv[i];
        if (only_arguments || word[0] != '-' || word[1] == 0) {
            if (!argument) usage_error("'%s' is no option; --help lists them", word);
            give(argument, word);
            argument = next_argument(table, argument);
        } else if (word[1] == '-') {   // --name, --name value, --name=value
            size_t length = strcspn(word + 2, "=");
            if (word[2] == 0) {
                only_arguments = 1;
                continue;
            }
            Option* o = find_long(table, word + 2, length);
            const char* text = word[2 + length] ? word + 3 + length : NULL;
            if (o->kind == OPTION_FLAG && text) usage_error("--%s takes no value", o->name);
            answer(o, table, synopsis, version);
            if (o->kind == OPTION_FLAG) text = "1";
            else if (!text && i + 1 < argc) text = argv[++i];
            if (!text) usage_error("--%s needs a value", o->name);
            give(o, text);
        } else {                       // -x, -xy (flags together), -x value, -xvalue
            for (char* letter = word + 1; *letter; letter++) {
                Option* o = find_letter(table, *letter);
                answer(o, table, synopsis, version);
                if (o->kind == OPTION_FLAG) {
                    give(o, "1");
                    continue;
                }
                const char* text = letter[1] ? letter + 1 : i + 1 < argc ? argv[++i] : NULL;
                if (!text) usage_error("-%c (--%s) needs a value", *letter, o->name);
                give(o, text);
                break;
            }
        }
    }
    if (argument) usage_error("%s is missing; --help shows the usage", argument->argument ? argument->argument : argument->name);
}

// ---- options.txt ----

static int plain(const char* text) {
    return *text && text[strcspn(text, " \t\r\n\"\\#")] == 0;
}

void options_write(const Option* table, FILE* f) {
    for (const Option* o = table; o->kind != OPTION_END; o++) {
        if (!has_value(o)) continue;
        char* text = option_text(o);
        if (!text) fprintf(f, "%s =\n", o->name);
        else if (plain(text)) fprintf(f, "%s = %s\n", o->name, text);
        else {
            fprintf(f, "%s = \"", o->name);
            for (const char* p = text; *p; p++) {
                if (*p == '\n') fputs("\\n", f);
                else if (*p == '"' || *p == '\\') fprintf(f, "\\%c", *p);
                else fputc(*p, f);
            }
            fputs("\"\n", f);
        }
        free(text);
    }
}

// The value behind "name = ", unquoted in place; *ok = 0 where a quote does not end. NULL: not set.
static char* unquote(char* text, int* ok) {
    *ok = 1;
    if (*text == 0) return NULL;
    if (*text != '"') return text;
    char* to = text;
    const char* from = text + 1;
    for (; *from && *from != '"'; from++) {
        if (*from == '\\' && from[1]) *to++ = *++from == 'n' ? '\n' : *from;
        else *to++ = *from;
    }
    *ok = from[0] == '"' && from[1] == 0;
    *to = 0;
    return text;
}

// 1 where the table's value is that of the file. Compared as values, so that "0.10" is 0.1.
static int same_value(Option* o, const char* text, const char* path) {
    if (!text) return *(const char**)o->value == NULL;
    union { int i; int64_t l; double d; const char* s; } other;
    Option copy = *o;
    copy.value = &other;
    char* reason = option_set(&copy, text);
    if (reason) trouble("%s: %s %s", path, o->name, reason);
    char *ours = option_text(o), *theirs = option_text(&copy);
    int same = ours && strcmp(ours, theirs) == 0;
    free(ours);
    free(theirs);
    return same;
}

// One line of the file against the table. Returns a fresh "--name is A here and B there", or NULL where they agree.
static char* resume_option(Option* o, const char* text, const char* path) {
    if (!text && !is_text(o)) trouble("%s: %s has no value", path, o->name);
    if (!o->given) {
        if (!text) {
            *(const char**)o->value = NULL;
            return NULL;
        }
        if (is_text(o)) text = format_string("%s", text);   // kept until the program ends
        char* reason = option_set(o, text);
        if (reason) trouble("%s: %s %s", path, o->name, reason);
        return NULL;
    }
    if (!o->meaning || same_value(o, text, path)) return NULL;
    char* ours = option_text(o);
    char* line = format_string("--%s is %s here, %s in that run", o->name, ours ? ours : "(not set)", text ? text : "(not set)");
    free(ours);
    return line;
}

void options_resume(Option* table, const char* path) {
    FILE* f = fopen(path, "r");
    if (!f) trouble("%s: %s; a run that can go on has its options there", path, strerror(errno));
    int count = 0;
    while (table[count].kind != OPTION_END) count++;
    char* seen = allocate((size_t)count + 1, 1);
    char* differences = format_string("%s", "");
    char* line = NULL;
    size_t room = 0;
    for (int number = 1; getline(&line, &room, f) > 0; number++) {
        line[strcspn(line, "\n")] = 0;
        char* equals = strstr(line, " =");
        if (!equals) trouble("%s:%d: expected 'name = value'", path, number);
        *equals = 0;
        int ok;
        char* text = unquote(equals + 2 + strspn(equals + 2, " "), &ok);
        Option* o = option_find(table, line);
        if (!o) trouble("%s:%d: there is no option '%s'; the run is of another version", path, number, line);
        if (!ok) trouble("%s:%d: the quotation mark after %s does not end", path, number, line);
        seen[o - table] = 1;
        char* difference = resume_option(o, text, path);
        if (!difference) continue;
        char* longer = format_string("%s%s%s", differences, *differences ? "; " : "", difference);
        free(differences);
        free(difference);
        differences = longer;
    }
    if (ferror(f)) trouble("%s: %s", path, strerror(errno));
    fclose(f);
    free(line);
    if (*differences) trouble("%s: a resumed run goes on with its own options: %s", path, differences);
    for (int i = 0; i < count; i++)
        if (has_value(&table[i]) && table[i].meaning && !seen[i])
            trouble("%s: no line for '%s': the file is cut off, or the run is of another version", path, table[i].name);
    free(differences);
    free(seen);
}
