/* runner.h - one test, one process: a crash is a failed test with a name.
 *
 *     TEST(a_closed_call_answers) { CHECK(1 + 1 == 2); }
 *
 * A test passes when it returns. It fails when a CHECK does not hold, when it dies or
 * when it runs too long (600 s, or MS_TEST_SECONDS from the environment).
 * A test need not end the processes that it starts: the runner kills them. */
#ifndef MS_TEST_RUNNER_H
#define MS_TEST_RUNNER_H

struct runner_test {
    const char *name;
    void (*run)(void);
    struct runner_test *next;
};

void runner_add(struct runner_test *test);
/* Ends the test as failed, with this reason. Any thread of the test may call it. */
_Noreturn void runner_fail(const char *file, int line, const char *format, ...) __attribute__((format(printf, 3, 4)));

#define TEST(title)                                                      \
    static void test_##title(void);                                      \
    static struct runner_test entry_##title = {#title, test_##title, 0}; \
    __attribute__((constructor)) static void add_##title(void)           \
    {                                                                    \
        runner_add(&entry_##title);                                      \
    }                                                                    \
    static void test_##title(void)

#define FAIL(...) runner_fail(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(condition) ((condition) ? (void)0 : FAIL("%s", #condition))
/* Compares integers; the failure shows both. */
#define CHECK_EQ(got, wanted)                                                \
    do {                                                                     \
        long long got_ = (long long)(got), wanted_ = (long long)(wanted);    \
        if (got_ != wanted_)                                                 \
            FAIL("%s is %lld, not %s (%lld)", #got, got_, #wanted, wanted_); \
    } while (0)

#endif
