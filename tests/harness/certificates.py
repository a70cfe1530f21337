"""Certificates for tests and measurements, made by the program `openssl`: a CA of its own for each job."""

import shutil
import subprocess
from pathlib import Path

from chicle_elastic.transports.tls import AUTHORITY, CERTIFICATE, KEY

OPENSSL = shutil.which("openssl")
"""None where the program is not installed, and certificates cannot be made."""
CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
VALID_DAYS, EXPIRED_DAYS = 2, -1


class Authority:
    """A CA.

    Args:
        folder: For its files; made if need be.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        _openssl(
            *("req", "-x509", *CURVE, "-days", str(VALID_DAYS), "-subj", f"/CN={folder.name}"),
            *("-keyout", str(folder / "ca.key"), "-out", str(folder / AUTHORITY)),
        )

    def issue(
        self, folder: Path, *, is_expired: bool = False, purposes: str = "serverAuth,clientAuth", address: str = ""
    ) -> Path:
        """Make a certificate, and a folder for `--tls` with it.

        Args:
            folder: Where to; its name goes into the certificate.
            is_expired: Since yesterday.
            purposes: Extended key usage.
            address: IP address of a server, where clients look for it in the certificate.

        Returns:
            The folder.
        """
        folder.mkdir(parents=True, exist_ok=True)
        request, extensions = folder / "request", folder / "extensions"
        names = f"subjectAltName=IP:{address}\n" if address else ""
        extensions.write_text(f"extendedKeyUsage={purposes}\n{names}")
        _openssl(
            "req", "-new", *CURVE, "-subj", f"/CN={folder.name}", "-keyout", str(folder / KEY), "-out", str(request)
        )
        _openssl(
            *("x509", "-req", "-in", str(request), "-extfile", str(extensions), "-out", str(folder / CERTIFICATE)),
            *("-CA", str(self._folder / AUTHORITY), "-CAkey", str(self._folder / "ca.key"), "-CAcreateserial"),
            *("-days", str(EXPIRED_DAYS if is_expired else VALID_DAYS)),
        )
        shutil.copy(self._folder / AUTHORITY, folder / AUTHORITY)
        request.unlink()
        extensions.unlink()
        return folder


def _openssl(*arguments: str) -> None:
    assert OPENSSL is not None, "the program openssl is not installed"
    subprocess.run((OPENSSL, *arguments), check=True, capture_output=True)
