"""Which errors are among the causes of an error, and whose certificates are trusted."""

import socket
import ssl
from types import SimpleNamespace

import pytest

from relay.core.errors import Misconfigured, Temporary
from relay.outbound import tls


def test_an_error_that_is_its_own_cause_is_yielded_once() -> None:
    first, second = OSError("first"), OSError("second")
    first.__cause__, second.__cause__ = second, first
    assert list(tls.causes(first)) == [first, second]


def test_members_of_a_group_come_before_its_cause() -> None:
    members = [OSError("a"), OSError("b")]
    members[0].__context__ = OSError("under a")
    group = ExceptionGroup("both", members)
    group.__cause__ = OSError("under the group")
    assert [str(cause) for cause in tls.causes(group)][1:] == [
        "a",
        "under a",
        "b",
        "under the group",
    ]


def test_a_certificate_says_more_than_a_failed_handshake() -> None:
    error, certificate = ssl.SSLError(1, "handshake"), ssl.SSLCertVerificationError(1, "bad")
    certificate.verify_message = "self-signed"
    error.__cause__ = certificate
    assert type(tls.failure(certificate, peer="broker")) is Misconfigured
    assert type(tls.failure(error, peer="broker")) is Misconfigured
    certificate.__context__ = None
    error.__cause__ = None
    assert type(tls.failure(error, peer="broker")) is Temporary
    assert tls.failure(OSError(), peer="broker") is None


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("UNSUPPORTED_PROTOCOL", "the broker speaks no version of TLS from 1.2 on"),
        ("TLSV1_ALERT_PROTOCOL_VERSION", "the broker speaks no version of TLS from 1.2 on"),
        ("WRONG_VERSION_NUMBER", "the broker does not speak TLS at this port"),
        (
            "SSLV3_ALERT_HANDSHAKE_FAILURE",
            "the broker and the relay have no TLS cipher in common",
        ),
        ("TLSV1_UNRECOGNIZED_NAME", "the broker does not serve this host name over TLS"),
        ("TLSV1_ALERT_INTERNAL_ERROR", "TLS failed (TLSV1_ALERT_INTERNAL_ERROR)"),
    ],
)
def test_openssls_reason_is_named_also_below_an_error_without_one(reason: str, text: str) -> None:
    above, error = ssl.SSLError(1, "above"), ssl.SSLError(1, "handshake")
    above.__cause__, error.reason = error, reason
    failure = tls.failure(above, peer="broker")
    assert failure is not None
    assert (type(failure), failure.reason) == (Temporary, text)


def test_a_wait_for_bytes_is_no_failure_of_tls() -> None:
    reset = ConnectionResetError("reset by peer")
    reset.__context__ = ssl.SSLWantReadError()
    assert list(tls.causes(reset)) == [reset]
    assert tls.failure(reset, peer="broker") is None


def test_sinks_without_files_share_the_cas_that_were_loaded_once() -> None:
    files = tls.TlsSettings(name="sink", type="nats")
    assert tls.context(files) is tls.context(files)
    # A broker is not offered the protocols of HTTP.
    assert tls.context(files) is not tls.for_http()


def test_a_system_without_cas_of_its_own_trusts_those_that_come_with_httpx(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nowhere = SimpleNamespace(cafile=None, capath=None)
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: nowhere)
    assert tls.trusting().cert_store_stats()["x509_ca"] > 100
    assert tls.default_cas().endswith(".pem")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (socket.gaierror(), "name not found"),
        (ConnectionRefusedError(), "connection refused"),
        (TimeoutError(), "could not connect in time"),
        (OSError(), "could not connect"),
    ],
    ids=repr,
)
def test_a_failure_to_connect_is_temporary_and_named(error: OSError, reason: str) -> None:
    assert repr(tls.connect_failure(error, peer="broker")) == repr(Temporary(reason))
    assert tls.connect_failure(ValueError(), peer="broker") is None
