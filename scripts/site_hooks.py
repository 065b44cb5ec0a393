"""What mkdocs changes on the pages of the site."""

import re
from typing import Any

_ROLE = re.compile(r":(?:meth|class|func|mod|attr|exc|data):(?=<code>)")


def on_page_content(html: str, **_: Any) -> str:
    """Docstrings mark names with roles, as `help()` and editors show them; on the site code needs no mark."""
    return _ROLE.sub("", html)
