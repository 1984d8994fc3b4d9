"""The security headers of every page."""

import pytest

from relay.admin.page.access.headers import SECURITY_HEADERS


def test_the_content_security_policy_allows_only_files_of_ours() -> None:
    assert SECURITY_HEADERS["Content-Security-Policy"] == (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("Cross-Origin-Opener-Policy", "same-origin"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
        ("X-Content-Type-Options", "nosniff"),
        ("X-Frame-Options", "DENY"),
        ("Referrer-Policy", "same-origin"),
        ("Cache-Control", "no-store"),
    ],
)
def test_a_header_is_set(name: str, value: str) -> None:
    assert SECURITY_HEADERS[name] == value


def test_no_feature_is_on_but_writing_to_the_clipboard() -> None:
    policies = SECURITY_HEADERS["Permissions-Policy"].split(", ")
    assert [policy for policy in policies if not policy.endswith("=()")] == [
        "clipboard-write=(self)"
    ]
    assert len(policies) == len({policy.partition("=")[0] for policy in policies})
