/* test_corpus.c - the captures in tests/corpus/capture, good and bad: each is read as far as it
 * goes. The fuzzer begins with them. */
#define _POSIX_C_SOURCE 200809L
#include "capture_exercise.h"
#include "runner.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Beside the folder of this file, from where the compiler found it. */
static DIR *open_corpus(char *folder, size_t room)
{
    const char *end = strrchr(__FILE__, '/');
    CHECK(end);
    snprintf(folder, room, "%.*s/../../corpus/capture", (int)(end - __FILE__), __FILE__);
    return opendir(folder);
}

TEST(every_capture_of_the_corpus_can_be_read)
{
    char folder[512];
    DIR *corpus = open_corpus(folder, sizeof folder);
    CHECK(corpus);
    int found = 0;
    for (struct dirent *entry; (entry = readdir(corpus)) != NULL;) {
        if (entry->d_name[0] == '.')
            continue;
        char path[1024];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        int fd = open(path, O_RDONLY);
        CHECK(fd >= 0);
        for (uint64_t seed = 1; seed <= 20; seed++) {
            struct heap heap = {0};
            const char *wrong = capture_exercise(fd, seed, &heap);
            if (wrong)
                FAIL("%s: %s", entry->d_name, wrong);
        }
        close(fd);
        found++;
    }
    closedir(corpus);
    CHECK(found >= 12);
}
