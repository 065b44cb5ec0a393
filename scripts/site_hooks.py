"""Hooks that mkdocs calls while it builds the site."""

import re
from typing import Any

_ROLE = re.compile(r":(?:meth|class|func|mod|attr|exc|data):(?=<code>)")


def on_page_content(html: str, **_: Any) -> str:
    """Remove Sphinx roles, such as ``:func:``, which docstrings put before code."""
    return _ROLE.sub("", html)
