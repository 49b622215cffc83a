"""Builds wheel and sdist, and checks what a person gets: contents, metadata, an empty environment, the lowest torch.

python packaging/check.py [--tag v1.2.3] [--lowest]

Needs `build` and `twine`. `--tag` also compares the version with a tag that is about to be pushed; `--lowest` also
runs the tests of the public contract with the lowest torch that is declared, which is downloaded.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_SECONDS = 0.3
"""What `import wellcond` may add to importing torch."""
DATA = {"wellcond/py.typed", "wellcond_papers/py.typed", "wellcond/problem/digits.npz", "wellcond/optim/kernels.c"}
TORCH = re.compile(r'"torch>=([\d.]+)"')


def main() -> None:
    """All checks, each of which ends the program if it fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tag", help="the tag of a release, such as v0.2.0")
    parser.add_argument("--lowest", action="store_true", help="test with the lowest torch")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wheel, sdist = built(folder / "dist")
        check_contents(wheel, sdist)
        check_version(wheel, options.tag)
        run(sys.executable, "-m", "twine", "check", "--strict", wheel, sdist)
        check_rebuilt(sdist, wheel, folder)
        check_empty_environment(wheel, folder / "empty")
        if options.lowest:
            check_lowest_torch(wheel, folder / "lowest")
    print("packaging: all checks passed")


def run(*command: object, cwd: Path | None = None) -> str:
    """The standard output of a command that succeeds."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, env=variables)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def built(folder: Path, source: Path = ROOT) -> tuple[Path, Path]:
    """The wheel and the sdist of a source tree."""
    run(sys.executable, "-m", "build", "--outdir", folder, source)
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def check_contents(wheel: Path, sdist: Path) -> None:
    """All modules and data files of both packages, and nothing else."""
    sources = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == sources, f"the wheel differs from src: {sorted(packed ^ sources)}"
    assert packed >= DATA
    with tarfile.open(sdist) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in sources} | {"README.md", "LICENSE", "pyproject.toml"} <= files
    assert not [name for name in files if name.startswith(("docs/", "benchmarks/", "tests/"))]
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB; {sdist.name}: {sdist.stat().st_size / 1e6:.1f} MB")


def check_version(wheel: Path, tag: str | None) -> None:
    """One version in the package, the citation and the changelog, and of the tag."""
    version = wheel.name.split("-")[1]
    citation = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.M)
    assert citation is not None
    assert citation[1] == version, f"CITATION.cff has version {citation[1]}, the package {version}"
    first = re.search(r"^## (\S+)( \(unreleased\))?$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert first is not None
    assert first[1] == version, f"CHANGELOG.md begins with {first[1]}, the package has {version}"
    if tag is not None:
        assert tag == f"v{version}", f"the tag is {tag}, the version {version}"
        assert first[2] is None, f"CHANGELOG.md still calls {version} unreleased"
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        assert project.get("urls"), "pyproject.toml has no [project.urls]: write where the repository and the pages are"


def check_rebuilt(sdist: Path, wheel: Path, folder: Path) -> None:
    """A wheel that is built from the sdist has the same files."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    again, _ = built(folder / "again", next(folder.glob("wellcond-*")))
    assert zipfile.ZipFile(again).namelist() == zipfile.ZipFile(wheel).namelist()


def environment(folder: Path, *requirements: object) -> Path:
    """The interpreter of a new environment with these requirements."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements)
    return python


def check_empty_environment(wheel: Path, folder: Path) -> None:
    """The wheel alone: what it imports, how long that takes, and what the command says without its libraries."""
    pinned = re.search(r"^torch==\S+$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.M)
    assert pinned is not None
    python = environment(folder, pinned[0], wheel)
    seconds = import_seconds(python, folder)
    print(f"import wellcond adds {seconds:.2f} s to importing torch")
    assert seconds <= MOST_SECONDS
    command = subprocess.run([python.with_name("wellcond")], capture_output=True, text=True, cwd=folder)
    assert command.returncode == 1
    assert command.stderr == 'typer is not installed. Run:  pip install "wellcond[cli]"\n', command.stderr
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", pinned[0], f"{wheel}[cli]")
    verdict = json.loads(run(python.with_name("wellcond"), "demo", "--json", cwd=folder))
    print(f"wellcond demo: {len(verdict)} entries")


def import_seconds(python: Path, folder: Path, times: int = 7) -> float:
    """The median of what importing wellcond takes once torch and numpy are there, of a processor's time."""
    code = "import torch, numpy, time; t = time.process_time(); import wellcond; print(time.process_time() - t)"
    return statistics.median([float(run(python, "-c", code, cwd=folder)) for _ in range(times + 1)][1:])


def check_lowest_torch(wheel: Path, folder: Path) -> None:
    """The public names work as the documentation has them, with the lowest torch that is declared."""
    (declared,) = TORCH.findall((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    python = environment(folder, f"torch=={declared}.*", f"{wheel}[all]", "pytest")
    tests = folder / "tests"
    shutil.copytree(ROOT / "tests", tests)
    rooms = ("test_contract.py", "problem", "curvature", "measurements", "nn", "training")
    # squared errors of float64 targets fail in torch itself before 2.10
    newer = "problem/test_determinism.py::test_float64_targets_of_a_float32_model_work"
    run(python, "-m", "pytest", "--quick", "-q", "-p", "no:cacheprovider", "--deselect", newer, *rooms, cwd=tests)
    print(f"torch {declared}: {', '.join(rooms)} pass")


if __name__ == "__main__":
    main()
