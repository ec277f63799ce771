// The command line: every form of an option, every usage error, --help, and options.txt there and back.
#include "data/options.h"
#include "test.h"

static int batch, quick;
static int64_t seed;
static double keep, rate;
static const char *out, *model, *in;
static int policy;

// A table with defaults; its OPTION_ARGUMENT only where wanted.
static Option* table_with(int arguments) {
    static Option table[16];
    Option fresh[] = {
        {.kind = OPTION_GROUP, .name = "Data"},
        {.kind = OPTION_TEXT, .name = "out", .letter = 'o', .value = &out, .argument = "DIR", .help = "where the run goes"},
        {.kind = OPTION_TEXT, .name = "model", .letter = 'm', .value = &model, .argument = "DIR", .help = "checkpoint", .meaning = 1},
        {.kind = OPTION_INT, .name = "batch", .letter = 'b', .value = &batch, .argument = "N", .help = "images in a step",
         .least = 1, .most = 65536, .meaning = 1},
        {.kind = OPTION_GROUP, .name = "Method"},
        {.kind = OPTION_FLOAT, .name = "keep", .value = &keep, .argument = "FRACTION",
         .help = "the fraction of the arms that learn in a step; a text long enough to need a second line, to be read without "
                 "scrolling sideways", .least = 0, .most = 1, .meaning = 1},
        {.kind = OPTION_FLOAT, .name = "rate", .value = &rate, .argument = "RATE", .help = "any number"},
        {.kind = OPTION_CHOICE, .name = "policy", .value = &policy, .argument = "bandit|uniform|norm", .help = "how arms are drawn",
         .meaning = 1},
        {.kind = OPTION_LONG, .name = "seed", .value = &seed, .argument = "N", .help = "of all randomness", .meaning = 1},
        {.kind = OPTION_FLAG, .name = "quick", .letter = 'q', .value = &quick, .help = "less of everything"},
        {.kind = OPTION_INT, .name = "a-very-long-name-of-an-option", .value = &(int){3}, .argument = "N", .help = "its help goes below"},
        {.kind = arguments ? OPTION_ARGUMENT : OPTION_END, .name = "in", .value = &in, .argument = "INPUT", .help = "what is read"},
        {.kind = OPTION_END},
    };
    batch = 32, quick = 0, seed = 42, keep = 0.5, rate = 1, out = NULL, model = "vit", policy = 0, in = NULL;
    memcpy(table, fresh, sizeof fresh);
    return table;
}

static Option* parse(Option* table, const char* line) {
    static char words[1024];   // the values point into it
    snprintf(words, sizeof words, "%s", line);
    char* argv[32] = {"program"};
    int argc = 1;
    for (char* word = strtok(words, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    options_parse(table, argc, argv, "program -m DIR [OPTION]...", "program 1.2");
    return table;
}
static void parse_plain(const void* line) { parse(table_with(0), line); }
static void parse_argument(const void* line) { parse(table_with(1), line); }

static void test_forms(void) {
    Option* t = parse(table_with(0), "--batch 8 --keep=0.25 -o runs/a -mother -q --policy norm --seed=-9223372036854775808");
    CHECK(batch == 8 && keep == 0.25 && quick == 1 && policy == 2 && seed == INT64_MIN, "%d %g %d %d", batch, keep, quick, policy);
    CHECK(!strcmp(out, "runs/a") && !strcmp(model, "other"), "%s %s", out, model);
    CHECK(option_find(t, "batch")->given && !option_find(t, "rate")->given && !option_find(t, "nothing"), "given");
    parse(table_with(0), "--ba 8 --po=uniform -qb9 --rate -1e3 --out=");   // prefixes, letters together, last wins, a negative value
    CHECK(batch == 9 && policy == 1 && quick && rate == -1000 && *out == 0, "%d %d %d %g", batch, policy, quick, rate);
    parse(table_with(1), "-b 2 photo.jpg -q");
    CHECK(batch == 2 && quick && !strcmp(in, "photo.jpg"), "%d %d", batch, quick);
    parse(table_with(1), "-- -b");
    CHECK(!strcmp(in, "-b"), "%s", in);
    batch = 7;
    parse(table_with(0), "");
    CHECK(batch == 32 && keep == 0.5 && out == NULL, "defaults");
}

static void test_errors(void) {
    const char* cases[][2] = {
        {"--bach 8", "no option --bach"}, {"-z", "no option -z"}, {"--batch", "--batch needs a value"}, {"-qb", "-b (--batch) needs a value"},
        {"--batch 0", "--batch takes a whole number from 1 to 65536, not '0'"}, {"--batch 65537", "not '65537'"},
        {"--batch 8x", "not '8x'"}, {"--batch=", "not ''"}, {"--batch 1.5", "whole number"}, {"--keep 1.01", "from 0 to 1"},
        {"--keep nan", "from 0 to 1"}, {"--rate inf", "takes a number, not 'inf'"}, {"--policy best", "bandit, uniform or norm, not 'best'"},
        {"--policy nor", "not 'nor'"}, {"--seed 9223372036854775808", "takes a whole number"}, {"--quick=1", "takes no value"},
        {"stray", "'stray' is no option"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) test_dies(parse_plain, cases[i][0], cases[i][1], 2);
    Option two[] = {{.kind = OPTION_FLAG, .name = "eval", .value = &quick}, {.kind = OPTION_FLAG, .name = "evaluate", .value = &quick},
                    {.kind = OPTION_FLAG, .name = "even", .value = &quick}, {.kind = OPTION_END}};
    parse(two, "--eval");   // a whole name is not ambiguous
    CHECK(two[0].given && !two[1].given, "eval");
}

static void test_argument_errors(void) {
    test_dies(parse_argument, "-q", "INPUT is missing", 2);
    test_dies(parse_argument, "a b", "'b' is no option", 2);
}

static void ambiguous(const void* line) {
    Option two[] = {{.kind = OPTION_FLAG, .name = "evaluate", .value = &quick}, {.kind = OPTION_FLAG, .name = "even", .value = &quick},
                    {.kind = OPTION_END}};
    parse(two, line);
}

// What the program prints on stdout for that command line; it must exit with 0.
static char* output_of(const char* line) {
    static char text[8192];
    int ends[2], status;
    fflush(NULL);
    if (pipe(ends)) exit(1);
    pid_t child = fork();
    if (child == 0) {
        if (__lsan_disable) __lsan_disable();
        dup2(ends[1], 1);
        parse(table_with(1), line);
        _exit(99);
    }
    close(ends[1]);
    size_t n = 0;
    for (ssize_t got; (got = read(ends[0], text + n, sizeof text - 1 - n)) > 0; n += (size_t)got);
    text[n] = 0;
    close(ends[0]);
    waitpid(child, &status, 0);
    CHECK(status == 0, "%s: status %x", line, status);
    return text;
}

static void test_help(void) {
    CHECK(!strcmp(output_of("--version"), "program 1.2\n"), "version");
    const char* text = output_of("--batch 5 -h");
    const char* parts[] = {"Usage: program -m DIR [OPTION]...\n", "\nMethod:\n", "  -b, --batch N", "images in a step [5]", "--policy NAME",
                           "how arms are drawn: bandit, uniform or norm [bandit]", "where the run goes\n", "checkpoint [vit]\n", "  INPUT ",
                           "less of everything\n", "--a-very-long-name-of-an-option N\n", "sideways [0.5]\n", "--version"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) CHECK(strstr(text, parts[i]), "no \"%s\" in\n%s", parts[i], text);
    int column = (int)(strstr(text, "images in a step") - strstr(text, "  -b, --batch N"));
    for (const char* line = text; *line; line += strcspn(line, "\n") + 1) CHECK(strcspn(line, "\n") <= 100, "too wide: %.120s", line);
    CHECK((int)(strstr(text, "less of everything") - strstr(text, "  -q, --quick")) == column, "columns");
}

static const char path[] = "/tmp/prebr_test_options.txt";
static void write_file(const char* text) {
    FILE* f = fopen(path, "w");
    fputs(text, f);
    fclose(f);
}
static void resume(const void* line) { options_resume(parse(table_with(0), line), path); }

static void test_resume(void) {
    const char* texts[] = {NULL, "", "plain", "two words", " lead", "quote\" and \\ and\nnew line", "#", "a=b", "ünïcode", "\"", "=", " = "};
    for (int i = 0; i < 500; i++) {
        Option* table = table_with(0);
        batch = test_int(1, 65536), quick = test_int(0, 1), policy = test_int(0, 2), out = texts[i % 12], model = texts[i / 12 % 12];
        seed = (int64_t)test_state, keep = test_random() * 0.5 + 0.5, rate = ldexp(test_random(), test_int(-1070, 1000));
        int b = batch, q = quick, p = policy;
        int64_t s = seed;
        double k = keep, r = rate;
        const char *o = out, *m = model;
        FILE* f = fopen(path, "w");
        options_write(table, f);
        fclose(f);
        options_resume(table_with(0), path);
        CHECK(batch == b && quick == q && policy == p && seed == s && keep == k && rate == r, "numbers of round %d", i);
        CHECK(o ? out && !strcmp(out, o) : !out, "out of round %d: %s", i, out);
        CHECK(m ? model && !strcmp(model, m) : !model, "model of round %d: %s", i, model);
        free((char*)out);      // read from the file, so a copy
        free((char*)model);
    }
    write_file("out = \"my run\"\nmodel = vit\nbatch = 16\nkeep = 0.10\nrate = 5\npolicy = norm\nseed = 1\nquick = 1\n");
    resume("--keep 0.1 --rate 2 -b 16 --model vit");   // the same meaning said again; rate has none and may change
    CHECK(keep == 0.1 && rate == 2 && batch == 16 && policy == 2 && quick && !strcmp(out, "my run"), "resumed");
    free((char*)out);
    test_dies(resume, "--keep 0.2 --policy bandit", "--keep is 0.2 here, 0.10 in that run; --policy is bandit here, norm in that run", 1);
    write_file("batch = 16\n");
    test_dies(resume, "", "no line for 'model'", 1);
    write_file("batch = 0\n");
    test_dies(resume, "", "batch takes a whole number from 1", 1);
    write_file("batch = 1\nnonsense\n");
    test_dies(resume, "", ":2: expected 'name = value'", 1);
    write_file("bach = 1\n");
    test_dies(resume, "", ":1: there is no option 'bach'", 1);
    write_file("out = \"a\n");
    test_dies(resume, "", "does not end", 1);
    write_file("batch =\n");
    test_dies(resume, "", "batch has no value", 1);
    unlink(path);
    test_dies(resume, "", "No such file", 1);
}

// A path is recorded in full, and is the same by whatever way one comes there.
static const char* where;
static Option* places(void) {
    static Option table[] = {{OPTION_PATH, "where", 0, &where, "DIR", "", 0, 0, 1, 0}, {OPTION_END, NULL, 0, NULL, NULL, NULL, 0, 0, 0, 0}};
    return table;
}
static void resume_places(const void* line) {
    Option* table = places();
    char* argv[] = {"program", "--where", (char*)line};
    options_parse(table, 3, argv, "program", "1");
    options_resume(table, path);
}
static void test_paths(void) {
    where = "/usr/../usr/./bin/..";
    FILE* f = fopen(path, "w");
    options_write(places(), f);
    fclose(f);
    char text[64] = "";
    f = fopen(path, "r");
    CHECK(fread(text, 1, sizeof text - 1, f) > 0 && !strcmp(text, "where = /usr\n"), "%s", text);
    fclose(f);
    resume_places("/usr/bin/../");
    test_dies(resume_places, "/usr/bin", "--where is /usr/bin here, /usr in that run", 1);
    test_dies(resume_places, "/nowhere", "--where is /nowhere here, /usr in that run", 1);
    unlink(path);
}

int main(void) {
    test_forms();
    test_errors();
    test_argument_errors();
    test_dies(ambiguous, "--ev", "--ev may be --evaluate or --even", 2);
    test_help();
    test_resume();
    test_paths();
    TEST_END();
}
