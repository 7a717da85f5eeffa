"""Masks secrets in text: tokens, keys, passwords, credentials in URLs."""

import re

MASK = "***"

# Secrets that are recognized by their own form, without a name in front of them.
_SHAPES = (
    r"hf_(?:(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{6,}|[a-z]{16,})|(?:sk|pk|rk)-[\w-]{16,}|nvapi-[\w-]{8,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{12,}",
    r"xox[abprs]-[\w-]{8,}|(?:AKIA|ASIA)[0-9A-Z]{12,}|dckr_pat_[\w-]{12,}|pypi-[\w-]{16,}|AIza[\w-]{20,}",
    r"eyJ[\w-]{6,}\.[\w-]{6,}(?:\.[\w-]*)?",  # JSON Web Token
)
_NAME = (
    r"(?:pass(?:word|wd|phrase|code)?|pwd|secret(?:[_-]?(?:access[_-]?)?key)?|token|credentials?|authorization"
    r"|(?:api|access|account|private|shared[_-]?access|signing|encryption|master)[_-]?keys?|(?<![a-z])sig(?:nature)?"
    r"|cookie|session[_-]?id|recovery[_-]?(?:key|password))"
)
_QUOTED = r"\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?"
_SECRETS = re.compile(
    "|".join(
        (
            # The rest of a header line is secret.
            r"(?P<header>\b(?:proxy-)?authorization[\"']?\s*[:=]\s*)[^\r\n]+",
            r"(?P<cookie>\b(?:set-)?cookie[\"']?\s*:\s*)[^\r\n]+",
            r"(?P<bearer>\b(?:bearer|basic)\s+)(?=[\w.~+/=-]{8})[\w.~+/=-]+",
            r"(?P<url>(?<![a-z0-9+.-])[a-z][a-z0-9+.-]{1,20}://)[^\s@\"'<>]{0,500}@(?=[\w.\[-])",
            rf"(?P<option>-(?:[\w-]{{0,40}}-)?{_NAME}(?:=|\s+))(?:{_QUOTED}|[^\s\"',;-][^\s\"',;]*)",
            rf"(?P<named>{_NAME}[\"'\]]?\s*[=:]\s*\[?)(?:{_QUOTED}|[^\s\"',;&}}\)\]]+)",
            r"(?P<plain>\bConvertTo-SecureString\s+(?:-\w+\s+)*)(?:" + _QUOTED + r"|[^\s-]\S*)",
            r"(?P<pem>-----BEGIN [A-Z ]*PRIVATE KEY-----)[^-]*(?:-----END [A-Z ]*PRIVATE KEY-----)?",
            rf"(?P<shape>\b)(?-i:{'|'.join(_SHAPES)})",
        )
    ),
    re.IGNORECASE,
)
_KEPT_GROUPS = ("header", "cookie", "bearer", "url", "option", "named", "plain", "pem", "shape")


def masked(text: str) -> str:
    """Replace each secret in a text by `***`. The name of a secret stays, so that a reader knows what was there."""
    return _SECRETS.sub(_mask_match, text)


def _mask_match(match: re.Match[str]) -> str:
    name = next(match[group] for group in _KEPT_GROUPS if match[group] is not None)
    return f"{name}{MASK}{'@' if match['url'] is not None else ''}"
