"""A job's secret, and certificates of its nodes."""

from pathlib import Path

import pytest

from chicle_elastic.transports.secret import JobSecret
from chicle_elastic.transports.tls import TlsIdentity
from tests.harness.certificates import OPENSSL, Authority


@pytest.fixture
def secret() -> JobSecret:
    """Make the secret of the job."""
    return JobSecret.generate()


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """Make the CA of the job."""
    if OPENSSL is None:
        pytest.skip("certificates are made by the program openssl")
    return Authority(tmp_path_factory.mktemp("ca") / "job")


@pytest.fixture(scope="session")
def folder(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make what a node mounts."""
    return authority.issue(tmp_path_factory.mktemp("tls") / "n1")


@pytest.fixture
def tls(folder: Path) -> TlsIdentity:
    """Read the certificate of a node."""
    return TlsIdentity(folder)
