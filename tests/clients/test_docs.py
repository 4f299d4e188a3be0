"""README.md and docs/ say what the sources have: endpoints, variables, codes, limits, options, links."""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "scripts"))

import check_docs  # noqa: E402
import pytest  # noqa: E402

CHECKS = [check_docs.check_endpoints, check_docs.check_environment, check_docs.check_names, check_docs.check_links]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_docs_and_sources_agree(check):
    assert check(check_docs.pages()) == []


def test_what_is_not_documented_is_found():
    nothing = {"README.md": "", "docs/policy.md": "GET /nowhere and [this](gone.md), ABX_SERVER_NO_SUCH_THING"}
    for check in CHECKS:
        assert check(nothing), check.__name__
