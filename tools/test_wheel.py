"""Install a wheel into an empty virtual environment where no compiler can be found, and test it there.

    python tools/test_wheel.py WHEEL FOLDER [--torch PYTHON]

FOLDER is where the environment is made; what is there is removed. tools/test_installed.py is run in it without
torch, then with the torch of the interpreter PYTHON. That second run is skipped if PYTHON has no torch that the
environment can load. The interpreter that runs this script must have pip.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import venv

TESTS = pathlib.Path(__file__).resolve().with_name("test_installed.py")


def main() -> None:
    parser = argparse.ArgumentParser(description="Test a wheel in an empty environment without a compiler.")
    parser.add_argument("wheel", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--torch", metavar="PYTHON", help="an interpreter that has torch")
    options = parser.parse_args()

    folder = options.folder.resolve()
    venv.create(folder, clear=True, symlinks=True, with_pip=False)
    python = folder / "bin" / "python"
    environment = without_compilers(folder)
    # --no-index and --no-deps: nothing but this wheel may be needed.
    install = [
        "-m",
        "pip",
        "--python",
        python,
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-index",
        "--no-deps",
    ]
    subprocess.run([sys.executable, *install, options.wheel], env=environment, check=True)

    print(f"== {options.wheel.name}, without torch", flush=True)
    subprocess.run([python, TESTS], env=environment, check=True)
    if options.torch:
        test_with_torch(options.torch, python, environment)


def without_compilers(folder: pathlib.Path) -> dict[str, str]:
    """An environment in which only the commands of the virtual environment are found."""
    kept = {name: os.environ[name] for name in ("HOME", "TMPDIR") if name in os.environ}
    refused = dict.fromkeys(("CC", "CXX", "LD"), "/bin/false")
    return {**kept, **refused, "PATH": str(folder / "bin"), "LANG": "C.UTF-8", "PYTHONNOUSERSITE": "1"}


def test_with_torch(source: str, python: pathlib.Path, environment: dict[str, str]) -> None:
    ask = (
        "import json, sys, sysconfig, torch; print(json.dumps([sys.implementation.cache_tag, "
        "sysconfig.get_path('platlib')]))"
    )
    answer = subprocess.run([source, "-c", ask], capture_output=True, text=True)
    if answer.returncode != 0:
        print(f"== with torch: skipped, because {source} cannot import torch")
        return
    tag, site_packages = json.loads(answer.stdout)
    if tag != sys.implementation.cache_tag:
        print(f"== with torch: skipped, because {source} is {tag} and the wheel is for {sys.implementation.cache_tag}")
        return
    # The folders that a .pth file names come last in sys.path, so a modscope in one of them does not hide the wheel's.
    here = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))"], capture_output=True, text=True
    )
    pathlib.Path(here.stdout.strip(), "torch_from_elsewhere.pth").write_text(site_packages + "\n")
    print("== the same wheel, with torch", flush=True)
    subprocess.run([python, TESTS, "--torch"], env=environment, check=True)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"test_wheel: this command ended with status {error.returncode}: {' '.join(map(str, error.cmd))}")
