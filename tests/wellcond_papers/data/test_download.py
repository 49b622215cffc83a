"""The download, from a server on this machine."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from wellcond.errors import CorruptData, DataNotFound
from wellcond_papers.data import cifar10, download, load
from wellcond_papers.data.locate import PUBLISHED

RECORD = bytes([7]) + bytes(range(256)) * 12
FOLDER = "cifar-10-batches-bin"


class Server(HTTPServer):
    """Serves what is in `files`; promises `missing` bytes more than it sends."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.missing = 0
        self.requests: list[str] = []


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        content = self.server.files.get(self.path.lstrip("/"))
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content) + self.server.missing))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    served = Server()
    thread = threading.Thread(target=served.serve_forever, args=(0.01,))
    thread.start()
    yield served
    served.shutdown()
    thread.join()
    served.server_close()


def address(server: Server) -> str:
    return f"http://127.0.0.1:{server.server_port}"


def archive(*members: tuple[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


CIFAR = [(f"{FOLDER}/{name}.bin", RECORD) for name in ("test_batch", *(f"data_batch_{k}" for k in range(1, 6)))]


def publish(monkeypatch: pytest.MonkeyPatch, server: Server, name: str, **files: bytes) -> None:
    """Put the files on the server, and their checksums into the list."""
    served = {file.replace("__", "-").replace("_GZ", ".gz"): content for file, content in files.items()}
    server.files.update(served)
    checksums = {file: hashlib.md5(content).hexdigest() for file, content in served.items()}
    monkeypatch.setitem(PUBLISHED, name, replace(PUBLISHED[name], address=address(server), files=checksums))


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch, server: Server) -> Server:
    publish(monkeypatch, server, "cifar10", cifar_GZ=archive(*CIFAR))
    return server


def test_an_archive_is_fetched_checked_and_unpacked_where_load_looks(published: Server, tmp_path: Path) -> None:
    shares: list[float] = []
    root = tmp_path / "new" / "data"
    assert download("cifar10", root, lambda what, share: shares.append(share)) == root / FOLDER
    assert load("cifar10", root, train=False).labels.tolist() == [7]
    assert len(cifar10(root)) == 5
    assert [path.name for path in root.iterdir()] == [FOLDER]
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_what_is_there_is_not_fetched_again(published: Server, tmp_path: Path) -> None:
    for _ in range(2):
        download("cifar10", tmp_path)
    assert len(published.requests) == 1


def test_gzipped_files_are_kept_if_their_checksum_is_right(
    monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path
) -> None:
    publish(monkeypatch, server, "mnist", images_GZ=b"images", labels_GZ=b"labels")
    folder = download("mnist", tmp_path)
    assert folder == tmp_path / "MNIST" / "raw"
    (folder / "images.gz").write_bytes(b"damaged")
    download("mnist", tmp_path)
    assert server.requests == ["/images.gz", "/labels.gz", "/images.gz"]
    assert (folder / "images.gz").read_bytes() == b"images"


def nothing_is_left(root: Path) -> bool:
    return not any(path for path in root.rglob("*") if path.is_file())


def test_a_file_with_another_checksum_is_refused(published: Server, tmp_path: Path) -> None:
    published.files["cifar.gz"] = archive(("evil", b""))
    with pytest.raises(CorruptData, match="expected a file with the MD5"):
        download("cifar10", tmp_path)
    assert nothing_is_left(tmp_path)


def test_a_connection_that_breaks_off_leaves_nothing(published: Server, tmp_path: Path) -> None:
    published.missing = 100
    size = len(published.files["cifar.gz"])
    with pytest.raises(CorruptData, match=f"expected {size + 100} bytes, found {size}"):
        download("cifar10", tmp_path)
    assert nothing_is_left(tmp_path)


@pytest.mark.parametrize(
    "name", [f"../{FOLDER}/x", "/etc/x", f"{FOLDER}/../../x", f"{FOLDER}/..", "other/x", f"{FOLDER}/deep/x", "x"]
)
def test_an_archive_cannot_write_outside_its_folder(
    monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path, name: str
) -> None:
    publish(monkeypatch, server, "cifar10", cifar_GZ=archive(*CIFAR, (name, b"evil")))
    with pytest.raises(CorruptData, match="no plain file"):
        download("cifar10", tmp_path / "root")
    assert nothing_is_left(tmp_path)


def test_links_in_an_archive_are_refused(monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        link = tarfile.TarInfo(f"{FOLDER}/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    publish(monkeypatch, server, "cifar10", cifar_GZ=packed.getvalue())
    with pytest.raises(CorruptData, match="no plain file"):
        download("cifar10", tmp_path)


def test_a_file_that_the_server_does_not_have_is_named(published: Server, tmp_path: Path) -> None:
    published.files.clear()
    with pytest.raises(DataNotFound, match=r"cifar\.gz cannot be fetched .*404"):
        download("cifar10", tmp_path)


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match="mirror="):
        download("mnist", tmp_path, mirror="http://127.0.0.1:9")


def test_a_mirror_serves_the_same_files(published: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = replace(PUBLISHED["cifar10"], address="http://127.0.0.1:9")
    monkeypatch.setitem(PUBLISHED, "cifar10", far)
    download("cifar10", tmp_path, mirror=address(published))
    assert len(cifar10(tmp_path)) == 5


@pytest.mark.parametrize("name", ["digits", "imagenet", "cifar"])
def test_only_what_is_published_can_be_fetched(name: str) -> None:
    with pytest.raises(ValueError, match="only mnist, fashion-mnist, cifar10, cifar100 can be fetched"):
        download(name)


def test_without_a_terminal_nothing_is_printed(
    published: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    download("cifar10", tmp_path)
    assert capsys.readouterr() == ("", "")
