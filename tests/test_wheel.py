"""A wheel has everything that a checkout has: whoever installs one can translate."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def test_a_wheel_has_the_shipped_models_and_the_pages(tmp_path):
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, tmp_path)
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")  # which lists files of builds before
    for name in ("src", "models"):
        shutil.copytree(REPOSITORY / name, tmp_path / name, symlinks=True, ignore=unwanted)
    build = "from setuptools.build_meta import build_wheel; print(build_wheel('.'))"
    made = subprocess.run([sys.executable, "-c", build], cwd=tmp_path, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    with zipfile.ZipFile(tmp_path / made.stdout.splitlines()[-1]) as wheel:
        inside = set(wheel.namelist())
    package = REPOSITORY / "src" / "regard"
    ours = [path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    ours += [path for path in (package / "models").rglob("*") if path.is_file()]  # a link, which rglob may not follow
    missing = {f"regard/{path.relative_to(package)}" for path in ours} - inside
    assert not missing
    assert "regard/models/en-de/model.safetensors" in inside
