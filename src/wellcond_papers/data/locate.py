"""Where the data sets are published, and where their files are on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wellcond.errors import DataNotFound

ROOT_VARIABLE = "WELLCOND_DATA"
DEFAULT_ROOT = "data"


@dataclass(frozen=True)
class Published:
    """What the authors of a data set publish.

    Attributes:
        title: What they call it.
        address: The folder on the web.
        files: The MD5 of each file there.
        folder: The folder under the root where the files belong.
        unpacked: For archives, which are unpacked there, the folder that comes out.
    """

    title: str
    address: str
    files: dict[str, str]
    folder: str = ""
    unpacked: str = ""


PUBLISHED = {
    "mnist": Published(
        "MNIST",
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        {
            "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
            "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
            "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
        },
        "MNIST/raw",
    ),
    "fashion-mnist": Published(
        "Fashion-MNIST",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        {
            "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
        "FashionMNIST/raw",
    ),
    "cifar10": Published(
        "CIFAR-10",
        "https://www.cs.toronto.edu/~kriz",
        {"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"},
        unpacked="cifar-10-batches-bin",
    ),
    "cifar100": Published(
        "CIFAR-100",
        "https://www.cs.toronto.edu/~kriz",
        {"cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8"},
        unpacked="cifar-100-binary",
    ),
}


def data_root(root: str | os.PathLike[str] | None) -> Path:
    """The folder that is passed; for None the one named by $WELLCOND_DATA, else `./data`."""
    return Path(os.environ.get(ROOT_VARIABLE) or DEFAULT_ROOT if root is None else root).expanduser()


def locate(name: str, part: str, root: Path, files: Sequence[Sequence[str]], folders: Sequence[Path]) -> list[Path]:
    """The files of the first folder that holds them all.

    Files are never gathered from two folders: they could be two versions of the data.

    Args:
        name: The data set, as in `PUBLISHED`.
        part: What is read of it, such as "train".
        root: The folder of all data sets.
        files: For each file, the spellings accepted, preferred first.
        folders: Folders to search, in order.

    Raises:
        DataNotFound: No folder holds them all; it says what to fetch from where, and where to put it.
    """
    reports = []
    for folder in folders:
        paths = [next((folder / s for s in spellings if (folder / s).is_file()), None) for spellings in files]
        complete = [path for path in paths if path is not None]
        if len(complete) == len(files):
            return complete
        missing = [spellings[0] for spellings, path in zip(files, paths, strict=True) if path is None]
        state = f"without {', '.join(missing)}" if folder.is_dir() else "no such folder"
        reports.append(f"{folder} ({state})")
    needed = "\n             ".join(" or ".join(spellings) for spellings in files)
    published = PUBLISHED[name]
    addresses = "\n             ".join(f"{published.address}/{file}" for file in published.files)
    place = f"and unpack it in {root}" if published.unpacked else f"into {root / published.folder} (no need to unpack)"
    raise DataNotFound(
        f"the files of {published.title} ({part}) were not found.\n"
        f"  needed:    {needed}\n"
        f"  looked in: {'; '.join(reports)}\n"
        f"  fetch:     {addresses}\n"
        f"             {place}. Or run:\n"
        f"             python -c \"from wellcond_papers.data import download; download('{name}', {str(root)!r})\"\n"
        f"  elsewhere: pass root=..., or set {ROOT_VARIABLE} to the folder that holds the data."
    )
