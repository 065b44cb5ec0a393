"""URLs and paths told apart, and passwords kept out of messages."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chronotile import urls

SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
WORDS = st.text("abXY019._", min_size=1, max_size=5)


@given(st.text("aA1:+-._é/ ", max_size=6))
@example("a+b:x")
@example("a.b:x")
@example("a-b:x")
@example("ab:")
@example("a:b")
@example("1a:b")
@example("a1:b")
@example("a+:b")
@example("+a:b")
@example(":ab")
@example("ab")
@example("a_b:")
def test_a_scheme_has_two_characters_and_begins_with_a_letter(text: str) -> None:
    assert urls.has_scheme(text) is (SCHEME.match(text) is not None)


@given(WORDS, st.text("ab:@/019", max_size=6), WORDS, st.sampled_from(["cassandra://", ""]))
@example("user", "", "host", "")
@example("u", "p", "h", "cassandra://")
def test_what_is_between_a_user_and_the_last_at_sign_is_hidden(
    user: str, password: str, host: str, scheme: str
) -> None:
    if scheme or "://" not in f"{user}:{password}@{host}":
        assert urls.without_password(f"{scheme}{user}:{password}@{host}/key") == f"{scheme}{user}:***@{host}/key"


@pytest.mark.parametrize(
    "url", ["cassandra://host:9042/key", "sqlite:survey.db", "cassandra://user@host/key", "a@b:c", "", "://", "x@", ":",
            "/path/to@file", "a@", "@:"]
)  # fmt: skip
def test_a_url_without_a_password_is_as_it_was(url: str) -> None:
    assert urls.without_password(url) == url


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("x://h/?password=a", "x://h/?password=***"),
        ("x://h/?a=b&token=c;d=e&SECRET=f=g", "x://h/?a=b&token=***;d=e&SECRET=***"),
        ("x://h/?a=1;db_passwd=2", "x://h/?a=1;db_passwd=***"),
        ("password=a", "password=a"), ("x://h/?passwords=a", "x://h/?passwords=a"),
        ("x://h/a=b?token=c", "x://h/a=b?token=***"), ("x://h/?a?token=c", "x://h/?a?token=***"),
        ("x://h/token?a=c", "x://h/token?a=c"), ("x://h/?a&token", "x://h/?a&token"),
    ],
)  # fmt: skip
def test_parameters_that_are_secrets_are_hidden(url: str, shown: str) -> None:
    assert urls.without_password(url) == shown
