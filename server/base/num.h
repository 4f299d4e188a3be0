#pragma once
/* Numbers in and out: strict text to integer, size units, checked arithmetic, shortest doubles. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ckd_add(r, a, b) __builtin_add_overflow((a), (b), (r))
#define ckd_mul(r, a, b) __builtin_mul_overflow((a), (b), (r))

/* Decimal, optional sign, nothing else; 0 on success, -1 otherwise. */
int num_parse(const char *s, int64_t min, int64_t max, int64_t *ret);

/* The same, as the wire's query strings and JSON strings allow: blanks around it. */
int num_parse_loose(const char *s, int64_t min, int64_t max, int64_t *ret);

/* Finite decimal number with optional exponent, blanks around it allowed; no hex, inf or nan. */
int num_parse_double(const char *s, double *ret);

/* Shortest text that reads back as d, in the reference's spelling: 0.1, 5.0, 1e-05, 1e+16.
 * d must be finite. out: at least NUM_DOUBLE_MAX bytes. Returns the length. */
#define NUM_DOUBLE_MAX 32
size_t num_double(double d, char *out);

/* Rounds half to even on the binary value, as printf does ("%.2f" and back). */
double num_round(double d, int digits);
