#!/bin/sh
# The comparison that docs/performance.md quotes: this build beside the reference and the machine's floors.
#   BENCH_REFERENCE=path/to/agent-sandbox-server tests/bench/run.sh [OPTIONS of bench.py]
set -eu
cd "$(dirname "$0")/../.."
export BENCH_ABX="${BENCH_ABX:-build/server/abx-server}"
export BENCH_ABX_COMMANDS="${BENCH_ABX_COMMANDS:-build/tests/commands_fixture.so}"
peers="floors floor-epoll-1 abx abx-raised abx-raw"
[ -n "${BENCH_REFERENCE:-}" ] && peers="$peers reference reference-raised"
# shellcheck disable=SC2086 # a list of words
python3 tests/bench/bench.py --out build/bench.json "$@" $peers
python3 tests/bench/report.py build/bench.json
