"""The authority that a cluster names joins those that the machine knows; both deployables do it alike."""

from __future__ import annotations

import ssl
from pathlib import Path
from types import ModuleType

import certifi
import pytest

from stratlab import machine as of_the_tools
from trainer.distributed import machine as of_the_trainer

BOTH = pytest.mark.parametrize("module", [of_the_tools, of_the_trainer], ids=["tools", "trainer"])


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """One of the known certificates: any will do."""
    text = Path(certifi.where()).read_text()
    begin = text.index(of_the_tools.MARK)
    file = tmp_path / "ca.crt"
    file.write_text(
        text[begin : text.index("-----END CERTIFICATE-----", begin)] + "-----END CERTIFICATE-----\n"
    )
    return file


@BOTH
def test_one_file_has_both(module: ModuleType, authority: Path) -> None:
    environ = {"STRATLAB_CA_FILE": str(authority), "CURL_CA_BUNDLE": "/mine"}
    module.trust_given(environ)
    assert environ.pop("CURL_CA_BUNDLE") == "/mine", "what the user says stays"
    assert set(environ) == {"SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE"}
    (file,) = {*environ.values()}
    text = Path(file).read_text()
    assert authority.read_text() in text and text.count(module.MARK) > 100
    ssl.create_default_context(cafile=file)
    Path(file).unlink()


@BOTH
def test_what_is_no_certificate_is_refused(module: ModuleType, tmp_path: Path) -> None:
    for environ in ({}, {"STRATLAB_CA_FILE": str(tmp_path / "none")}):
        before = dict(environ)
        module.trust_given(environ)
        assert environ == before, "without a file nothing changes"
    (tmp_path / "ca.crt").write_text("hello")
    with pytest.raises(ValueError) as failure:
        module.trust_given({"STRATLAB_CA_FILE": str(tmp_path / "ca.crt")})
    assert str(tmp_path / "ca.crt") in str(failure.value)
    untrusted = ssl.SSLCertVerificationError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
    assert "run.certificates" in module.explain_untrusted(untrusted)
    assert module.explain_untrusted(OSError("connection refused")) == ""
