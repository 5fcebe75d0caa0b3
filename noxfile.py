"""The project's tasks: ``./dev NAME`` runs one, ``./dev --list`` names them all, ``./dev`` runs the default ones.

``lint`` and ``build`` need neither torch nor the package, so each has a small environment of its own. All others share
the one that ``environment`` makes, because torch is large and should be installed once.
Every version comes from ``constraints.txt``, build backend included: nothing is built in pip's isolated environments,
which constraints do not reach.
"""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import nox

nox.needs_version = ">=2025.5"
nox.options.default_venv_backend = "virtualenv"
nox.options.reuse_venv = "yes"
nox.options.sessions = ["lint", "types", "tests"]

ROOT = Path(__file__).resolve().parent
DIST = ROOT / "dist"
SHARED_BIN = ROOT / ".nox" / "environment" / "bin"
CONSTRAINED = ("--constraint", "constraints.txt")
CACHES = {
    "HYPOTHESIS_STORAGE_DIRECTORY": str(ROOT / ".cache" / "hypothesis"),
    "TRITON_CACHE_DIR": str(ROOT / ".cache" / "triton"),
    "XDG_CACHE_HOME": str(ROOT / ".cache"),
}
PYTHONS = ("3.11", "3.12", "3.13")
MOST_WHEEL_BYTES = 20_000_000
HELP_NEEDS = ("typer", "tomlkit")
"""What ``dsmla-bench --help`` imports beside the package."""
CHECK_WHEEL = (
    "import importlib.resources, dsmla_bench; "
    "files = ('py.typed', 'reports/dashboard/pages/index.html', 'reports/page/report.html', 'evals/tasks/prose.yaml'); "
    "lacking = [name for name in files if not (importlib.resources.files(dsmla_bench) / name).is_file()]; "
    "assert not lacking, f'the wheel lacks {lacking}'"
)


@nox.session(default=False)
def environment(session: nox.Session) -> None:
    """Install the package in editable form with everything that types, tests and demo need."""
    stamp = session.env_dir / "installed"
    digest = hashlib.sha256(str(ROOT).encode())  # a moved clone needs new paths
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((ROOT / name).read_bytes())
    state = digest.hexdigest()
    if stamp.is_file() and stamp.read_text() == state:
        return
    session.install(*CONSTRAINED, "hatchling", "editables", "setuptools")
    session.install(*CONSTRAINED, "--no-build-isolation", "--editable", ".[dev,accuracy,ray,s3]")
    # run_install, unlike a plain write, is skipped together with the installs above by nox --no-install.
    session.run_install("python", "-c", f"open({str(stamp)!r}, 'w').write({state!r})", log=False)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting with ruff; ``./dev lint --fix`` mends what can be mended."""
    fix = session.posargs == ["--fix"]
    session.install(*CONSTRAINED, "ruff")
    session.run("ruff", "check", *(["--fix"] if fix else []))
    session.run("ruff", "format", *([] if fix else ["--check"]))


@nox.session(venv_backend="none", requires=["environment"])
def types(session: nox.Session) -> None:
    """Check the package's types with mypy --strict."""
    session.run(SHARED_BIN / "python", "-m", "mypy", *session.posargs)


@nox.session(venv_backend="none", requires=["environment"])
def tests(session: nox.Session) -> None:
    """Run pytest in two processes; arguments go to pytest, and ``-n 0`` runs it in one.

    What is marked as an ``xdist_group`` stays in one of them: a Ray cluster is started once.
    """
    # One thread for each process: two pools of torch threads would only fight over the cores.
    env = {**CACHES, "OMP_NUM_THREADS": "1"}
    session.run(SHARED_BIN / "python", "-m", "pytest", "-n", "2", "--dist", "loadgroup", *session.posargs, env=env)


@nox.session(venv_backend="none", default=False)
def browser(session: nox.Session) -> None:
    """See to a Chromium for the tests of pages: Debian's, installed with apt-get by root."""
    if shutil.which("chromium"):
        return
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        session.warn("there is no Chromium, so tests of pages will be skipped (on Debian: apt-get install chromium)")
        return
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    # An update that fails for one source may still have brought what the install needs.
    session.run("apt-get", "update", env=env, external=True, silent=True, success_codes=range(256))
    packages = ("chromium", "fonts-dejavu-core")
    command = ("apt-get", "install", "--yes", "--no-install-recommends", *packages)
    session.run(*command, env=env, external=True, silent=True)


@nox.session(venv_backend="none", requires=["environment"], default=False)
def demo(session: nox.Session) -> None:
    """Run ``dsmla-bench demo``."""
    session.run(SHARED_BIN / "dsmla-bench", "demo", *session.posargs, env=CACHES)


@nox.session(requires=["environment"], default=False)
def build(session: nox.Session) -> None:
    """Build sdist and wheel into dist/, check both, and install the wheel on every Python that is there.

    Each Python gets a fresh environment in which the command shows its help. ``list`` and ``formats`` need torch: they
    run where the environment of the tests has it for that Python, and everywhere with ``./dev build --full``, which
    installs the wheel with all its dependencies.
    """
    session.install(*CONSTRAINED, "build", "hatchling", "twine")
    shutil.rmtree(DIST, ignore_errors=True)
    session.run("python", "-m", "build", "--no-isolation", silent=True)
    session.run("python", "-m", "twine", "check", "--strict", *map(str, DIST.iterdir()))
    (wheel,) = DIST.glob("*.whl")
    if wheel.stat().st_size > MOST_WHEEL_BYTES:
        session.error(f"{wheel.name} has {wheel.stat().st_size} bytes, more than {MOST_WHEEL_BYTES}")
    for version in PYTHONS:
        python = find_python(version)
        if python is None:
            session.warn(f"there is no Python {version}, so the wheel was not installed on it")
        else:
            check_install(session, python, wheel, full=session.posargs == ["--full"])


def find_python(version: str) -> str | None:
    """An interpreter of this version: by its name on the path, or one of pyenv's."""
    named = shutil.which(f"python{version}")
    of_pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob(f"versions/{version}.*/bin/python")
    for python in filter(None, [named, *map(str, of_pyenv)]):
        # A name on the path may be a version manager's stub that leads nowhere.
        command = [python, "-c", "import venv; from ensurepip import version"]
        if subprocess.run(command, capture_output=True, check=False).returncode == 0:
            return python
    return None


def check_install(session: nox.Session, python: str, wheel: Path, *, full: bool) -> None:
    """Install the wheel into a fresh environment of ``python`` and run what its dependencies allow."""
    fresh = Path(session.create_tmp()) / "fresh"
    session.run(python, "-m", "venv", "--clear", "--without-pip", fresh, external=True)
    install = ("python", "-m", "pip", "--python", fresh, "install", "--quiet", *CONSTRAINED)
    if full:
        session.run(*install, wheel)
    else:
        session.run(*install, *HELP_NEEDS)
        session.run(*install, "--no-deps", wheel)
    # -I keeps the working tree off sys.path, so that imports find the wheel.
    session.run(fresh / "bin" / "python", "-I", "-c", CHECK_WHEEL, external=True)
    (packages,) = fresh.glob("lib/python*/site-packages")
    session.run(fresh / "bin" / "python", "-I", "-m", "compileall", "-q", packages / "dsmla_bench", external=True)
    commands = ["--help"]
    shared = ROOT / ".nox" / "environment" / packages.relative_to(fresh)
    if full or shared.is_dir():
        commands += ["list", "formats"]
    if not full and shared.is_dir():
        (packages / "shared.pth").write_text(f"{shared}\n")
    for command in commands:
        session.run(fresh / "bin" / "dsmla-bench", command, env=CACHES, external=True, silent=True)
    session.log(f"{wheel.name} on {packages.parent.name}: {', '.join(commands)}")


@nox.session(venv_backend="none", requires=["environment"], default=False)
def coverage(session: nox.Session) -> None:
    """Run the tests of the rooms in tests/rooms.toml and fail where one has less than 90 % of its lines run."""
    session.run(SHARED_BIN / "python", "tests/measure_coverage.py", *session.posargs, env=CACHES)


@nox.session(venv_backend="none", requires=["environment"], default=False)
def faults(session: nox.Session) -> None:
    """Plant the faults of tests/planted_faults.toml and fail if the tests miss one; words choose among them."""
    session.run(SHARED_BIN / "python", "tests/plant_faults.py", *session.posargs, env=CACHES)
