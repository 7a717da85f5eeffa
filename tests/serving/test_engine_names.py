"""What engines are called."""

import re

from hypothesis import given
from hypothesis import strategies as st

from winhost.serving.engine_names import slug, socket, unit


def test_a_plain_name_stays_what_it_is() -> None:
    assert (slug("chat"), unit("chat")) == ("chat", "winhost-engine-chat.service")
    assert socket("chat") == "/run/winhost-engines/chat/engine.sock"


def test_names_that_lose_something_stay_apart() -> None:
    names = ["Chat", "CHAT", "chat!", "chat.", "qwen2.5", "qwen2-5", "qwen2_5", "-", "--", "é", "\ud800"]
    assert len({slug(name) for name in [*names, "chat"]}) == len(names) + 1


@given(st.text())
def test_any_name_makes_a_name_that_systemd_and_sockets_take(name: str) -> None:
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", slug(name))
    assert len(socket(name)) < 100  # a socket's path has at most 107 bytes
