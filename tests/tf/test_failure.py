"""How a script that fails ends on the command line."""

from __future__ import annotations

import subprocess
import sys

from test_check import SCRIPT


def test_a_graph_that_fails_is_told_by_node_line_and_reason(tmp_path):
    script = SCRIPT.replace(".repeat()", "").replace("max_steps=1000000", "max_steps=100")
    (tmp_path / "script.py").write_text(script)
    line = next(i for i, text in enumerate(script.splitlines(), 1) if "made.train(" in text)
    done = subprocess.run(
        [sys.executable, "-m", "systolic", "tf", "run", str(tmp_path / "script.py"), "--target", "cpu:1", "--",
         f"--model_dir={tmp_path}"],
        capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 2
    told = done.stderr.partition("systolic tf run: error: ")[2]
    assert told.startswith("OutOfRangeError at ")
    assert "IteratorGetNext" in told
    assert f"script.py:{line}): End of sequence; the data end before the steps do" in told
    assert "site-packages" not in told
