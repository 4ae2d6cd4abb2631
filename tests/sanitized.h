/* Is this program built with a sanitizer? */
#ifndef TESTS_SANITIZED_H
#define TESTS_SANITIZED_H

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

/* The step of a loop over many cases alike: a sanitizer sees in a few of them what it sees in all. */
#define FEWER(step) (SANITIZED ? (step) : 1)

#endif
