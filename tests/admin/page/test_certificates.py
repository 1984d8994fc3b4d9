"""Ends of certificates in PEM files, against other readers of them."""

import ssl
import subprocess
from pathlib import Path

import certifi
import pytest

from relay.admin.page.views.config.certificates import CA_KEY, CLIENT_KEY, ends_of, read_file

DAY_MS = 86_400_000


def issued(folder: Path, name: str, *, days: int) -> bytes:
    """Return a new certificate; one that ends after 2049 has its times in another form."""
    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    files = ("-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}")
    command = ("openssl", "req", "-x509", *key, *files, "-days", str(days))
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return (folder / f"{name}.pem").read_bytes()


@pytest.fixture(scope="module")
def der(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return ssl.PEM_cert_to_DER_cert(issued(tmp_path_factory.mktemp("der"), "a", days=2).decode())


def test_the_ends_of_known_authorities_are_those_that_python_reads() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(certifi.where())
    expected = [
        ssl.cert_time_to_seconds(str(each["notAfter"])) * 1000 for each in context.get_ca_certs()
    ]
    assert len(expected) > 50
    assert sorted(ends_of(Path(certifi.where()).read_bytes())) == sorted(expected)


def test_a_chain_ends_first_and_authorities_last(tmp_path: Path) -> None:
    soon, late = (issued(tmp_path, name, days=days) for name, days in (("a", 2), ("b", 40_000)))
    ends = ends_of(soon + late)
    assert (ends[1] - ends[0]) // DAY_MS in (39_997, 39_998)
    both = tmp_path / "both.pem"
    both.write_bytes(b"a comment\n" + late + soon)
    chain = read_file("crm", CLIENT_KEY, str(both))
    assert (chain.count, chain.ends_ms, chain.fault) == (2, ends[0], None)
    assert read_file("crm", CA_KEY, str(both)).ends_ms == ends[1]


def test_a_file_without_certificates_has_no_end(tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    file.write_text("-----BEGIN PRIVATE KEY-----\n")
    assert read_file("crm", CA_KEY, str(file)).ends_ms is None
    assert read_file("crm", CA_KEY, str(tmp_path / "none")).fault is not None


@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 40, 90, 200, -1])
def test_a_damaged_certificate_is_a_fault(der: bytes, length: int) -> None:
    damaged = ssl.DER_cert_to_PEM_cert(der[:length])
    with pytest.raises(ValueError, match="not a certificate"):
        ends_of(damaged.encode())


@pytest.mark.parametrize("at", range(0, 120, 3))
def test_changed_bytes_end_in_a_fault_or_a_time(der: bytes, at: int) -> None:
    changed = bytearray(der)
    changed[at] ^= 0xFF
    try:
        ends_of(ssl.DER_cert_to_PEM_cert(bytes(changed)).encode())
    except ValueError as error:
        assert "not a certificate" in str(error)  # noqa: PT017  both are right
