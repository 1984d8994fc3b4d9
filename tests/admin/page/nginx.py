"""An nginx that serves a relay's page below a path, as docs/console.md says."""

import re
from pathlib import Path

from tests.brokers.authority import Authority
from tests.brokers.program import Program

PREFIX = "/ops/relay"
"""Of the documented location."""

_DOCUMENT = Path(__file__).parents[3] / "docs" / "console.md"

_CONFIG = """
pid {folder}/nginx.pid;
events {{}}
http {{
    client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
    uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
    access_log off;
    server {{
        listen 127.0.0.1:{port}{listen};
        {location}
    }}
}}
"""


class PrefixingNginx(Program):
    """By plain HTTP; with `slash` it removes the prefix from the path."""

    name = "nginx"

    def __init__(self, folder: Path, *, relay_port: int, slash: str = "") -> None:
        folder.mkdir()
        super().__init__(folder)
        location = documented_location().replace(":9464;", f":{relay_port}{slash};")
        text = _CONFIG.format(
            folder=folder, port=self.port, listen=self.listen(), location=location
        )
        (folder / "nginx.conf").write_text(text, encoding="utf-8")

    def listen(self) -> str:
        return ""

    def command(self) -> list[str]:
        files = ["-c", str(self.folder / "nginx.conf"), "-e", str(self.folder / "error.log")]
        return [self.name, *files, "-g", "daemon off;"]


class TlsNginx(PrefixingNginx):
    """With a certificate of the test's own."""

    def listen(self) -> str:
        certificate = Authority(self.folder / "ca").issue("nginx")
        return f" ssl; ssl_certificate {certificate}; ssl_certificate_key {certificate}"


def documented_location() -> str:
    """The location that operators copy."""
    (location,) = re.findall("```nginx\n(.*?)```", _DOCUMENT.read_text("utf-8"), re.DOTALL)
    return str(location)
