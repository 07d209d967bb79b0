"""Keys and certificates of a federation on this machine: for loopback, and for a week."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID

LIFE = timedelta(days=7)


def tls(folder: Path) -> None:
    """A certificate authority, whose key is thrown away, and a server's certificate for loopback."""
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = _name("securefl federation")
    own = _certificate(issuer, issuer, authority.public_key()).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    hosts = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    its = (
        _certificate(_name("localhost"), issuer, server.public_key())
        .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "ca.pem").write_bytes(own.sign(authority, hashes.SHA384()).public_bytes(Encoding.PEM))
    (folder / "server.pem").write_bytes(its.sign(authority, hashes.SHA384()).public_bytes(Encoding.PEM))
    _secret(folder / "server.key", server, PrivateFormat.PKCS8)


def node_key(folder: Path, name: str) -> None:
    """A SuperNode's key pair, NAME and NAME.pub, as OpenSSH has them."""
    key = ec.generate_private_key(ec.SECP384R1())
    _secret(folder / name, key, PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    (folder / f"{name}.pub").write_bytes(public + b"\n")


def _secret(path: Path, key: ec.EllipticCurvePrivateKey, form: PrivateFormat) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, form, NoEncryption()))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + LIFE)
    )
