"""The project's tasks: ``./dev NAME`` runs one, ``./dev --list`` names them all, ``./dev`` runs the default ones.

``lint`` and ``build`` need neither torch nor the package, so each has a small environment of its own. ``types``,
``tests`` and ``demo`` share the one that ``environment`` makes, because torch is large and should be installed once.
Every version comes from ``constraints.txt``, build backend included: nothing is built in pip's isolated environments,
which constraints do not reach.
"""

import hashlib
import os
import shutil
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
CHECK_WHEEL = (
    "import importlib.resources, dsmla_bench; "
    "files = ('py.typed', 'reports/dashboard/pages/index.html', 'reports/page/report.html'); "
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
    session.install(*CONSTRAINED, "--no-build-isolation", "--editable", ".[dev,accuracy]")
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
    """Run pytest in two processes; arguments go to pytest, and ``-n 0`` runs it in one."""
    # One thread for each process: two pools of torch threads would only fight over the cores.
    env = {**CACHES, "OMP_NUM_THREADS": "1"}
    session.run(SHARED_BIN / "python", "-m", "pytest", "-n", "2", *session.posargs, env=env)


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


@nox.session(default=False)
def build(session: nox.Session) -> None:
    """Build sdist and wheel into dist/, and check that the wheel imports with no dependency installed."""
    session.install(*CONSTRAINED, "build", "hatchling")
    shutil.rmtree(DIST, ignore_errors=True)
    session.run("python", "-m", "build", "--no-isolation", silent=True)
    (wheel,) = DIST.glob("*.whl")
    bare = Path(session.create_tmp()) / "bare"
    session.run("python", "-m", "venv", "--clear", "--without-pip", bare)
    session.run("python", "-m", "pip", "--python", bare, "install", "--quiet", "--no-deps", wheel)
    # -I keeps the working tree off sys.path, so that the import finds the wheel.
    session.run(bare / "bin" / "python", "-I", "-c", CHECK_WHEEL, external=True)
