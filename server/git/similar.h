#pragma once
/* How alike two files are, measured as git does, so that renames and their percentages agree. */

#include <git2.h>

git_diff_similarity_metric similar_metric(void);

/* 0..100: the share of the larger file's bytes that the smaller one also has, in pieces of a line
 * or 64 bytes. */
int similar_score(const char *a, size_t a_len, const char *b, size_t b_len);
