/* What may be believed: the environment of a program without privileges, and files that only root and this user can
 * have changed. */
#ifndef SAT_TRUST_H
#define SAT_TRUST_H

#include <stdbool.h>
#include <stddef.h>

/* getenv; NULL in a program that has rights which its caller has not (setuid): the caller wrote that environment. */
const char *sat_environment(const char *name);

/* Can nobody but root and this user have changed the file at this full path? Looks at owner and mode of it and of
 * every folder and link on the way, so what is true stays true. A folder like /tmp may be on the way and may not be
 * what holds the file. Not `strict`: only what everybody may write counts. False: errno (EPERM: not safe), and `why`
 * in words. */
bool sat_path_safe(const char *path, bool strict, char *why, size_t size);

/* What a loader left alone because it is not safe, for contexts to report; kept for the process, without repeats. At
 * gives the i-th, false past the end. */
void sat_refusal_note(const char *text);
bool sat_refusal_at(int i, char *text, size_t size);

#endif
