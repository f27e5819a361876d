"""Finding the shipped pair costs no torch import."""

import os
import subprocess
import sys

from dsparkd.models.shipped import shipped_pair


def test_naming_the_shipped_pair_loads_no_torch() -> None:
    code = "import sys; from dsparkd.models.shipped import shipped_pair; shipped_pair(); print('torch' in sys.modules)"
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=path)
    assert ran.stdout.strip() == "False"


def test_every_shipped_path_exists() -> None:
    paths = shipped_pair()
    assert (paths.target / "config.json").is_file()
    assert (paths.drafter / "model.safetensors").is_file()
    assert paths.prompts.is_file()
