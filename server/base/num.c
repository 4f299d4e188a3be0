#include "base/num.h"

#include <ctype.h>
#include <errno.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static int parse_span(const char *s, const char *end, int64_t min, int64_t max, int64_t *ret)
{
    bool negative = false;
    if (s < end && (*s == '-' || *s == '+'))
        negative = *s++ == '-';
    if (s == end)
        return -1;
    int64_t value = 0;
    for (; s < end; s++) {
        if (*s < '0' || *s > '9')
            return -1;
        /* Built on the negative side, where INT64_MIN fits. */
        if (ckd_mul(&value, value, (int64_t)10) || __builtin_sub_overflow(value, *s - '0', &value))
            return -1;
    }
    if (!negative && ckd_mul(&value, value, (int64_t)-1))
        return -1;
    if (value < min || value > max)
        return -1;
    *ret = value;
    return 0;
}

int num_parse(const char *s, int64_t min, int64_t max, int64_t *ret)
{
    return parse_span(s, s + strlen(s), min, max, ret);
}

static void trim(const char **s, const char **end)
{
    while (*s < *end && is_blank(**s))
        (*s)++;
    while (*end > *s && is_blank((*end)[-1]))
        (*end)--;
}

int num_parse_loose(const char *s, int64_t min, int64_t max, int64_t *ret)
{
    const char *end = s + strlen(s);
    trim(&s, &end);
    return parse_span(s, end, min, max, ret);
}

int num_parse_double(const char *s, double *ret)
{
    const char *end = s + strlen(s);
    trim(&s, &end);
    char text[400];
    size_t len = (size_t)(end - s);
    if (len == 0 || len >= sizeof text)
        return -1;
    for (const char *p = s; p < end; p++)
        if (!isdigit((unsigned char)*p) && !strchr("+-.eE", *p))
            return -1;
    memcpy(text, s, len);
    text[len] = '\0';
    char *stop;
    double d = strtod(text, &stop);
    if (*stop || !isfinite(d))
        return -1;
    *ret = d;
    return 0;
}

/* Shortest digits: the first precision of 15..17 that reads back (fewer digits are 15 with zeros),
 * so the ladder starts at 15, and trailing zeros are dropped after. */
size_t num_double(double d, char *out)
{
    if (d == 0) {
        const char *zero = signbit(d) ? "-0.0" : "0.0";
        memcpy(out, zero, strlen(zero) + 1);
        return strlen(zero);
    }
    char sci[40];
    int precision = 15;
    snprintf(sci, sizeof sci, "%.*e", precision - 1, d);
    while (precision < 17 && strtod(sci, NULL) != d) {
        precision++;
        snprintf(sci, sizeof sci, "%.*e", precision - 1, d);
    }
    /* sci: [-]D.DDDDe[+-]XX; take it apart. */
    char digits[20];
    size_t n = 0;
    const char *p = sci;
    bool negative = *p == '-';
    if (negative)
        p++;
    for (; *p && *p != 'e'; p++)
        if (isdigit((unsigned char)*p))
            digits[n++] = *p;
    int exponent = (int)strtol(p + 1, NULL, 10);
    while (n > 1 && digits[n - 1] == '0')
        n--;

    char *at = out;
    if (negative)
        *at++ = '-';
    if (exponent < -4 || exponent >= 16) {
        *at++ = digits[0];
        if (n > 1) {
            *at++ = '.';
            memcpy(at, digits + 1, n - 1);
            at += n - 1;
        }
        at += snprintf(at, 8, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        *at = '\0';
        return (size_t)(at - out);
    }
    if (exponent < 0) {
        *at++ = '0';
        *at++ = '.';
        for (int i = -1; i > exponent; i--)
            *at++ = '0';
        memcpy(at, digits, n);
        at += n;
    } else {
        for (int i = 0; i <= exponent; i++)
            *at++ = (size_t)i < n ? digits[i] : '0';
        *at++ = '.';
        if (n > (size_t)exponent + 1) {
            memcpy(at, digits + exponent + 1, n - (size_t)exponent - 1);
            at += n - (size_t)exponent - 1;
        } else {
            *at++ = '0';
        }
    }
    *at = '\0';
    return (size_t)(at - out);
}

double num_round(double d, int digits)
{
    char text[400];
    if (!isfinite(d))
        return 0;
    snprintf(text, sizeof text, "%.*f", digits, d);
    return strtod(text, NULL);
}
