"""docs/embedding.md: its Python blocks run, one after the other, against an engine."""

import io
import re
from functools import partial
from pathlib import Path

from dsparkd import Client

PAGE = (Path(__file__).parents[2] / "docs" / "embedding.md").read_text()


def test_every_block_of_the_page_runs_as_it_stands(talking: Client) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 6
    names: dict[str, object] = {"__name__": "page"}
    printed = []
    for block in blocks:
        out = io.StringIO()
        names["print"] = partial(print, file=out)  # the engine of this process logs, too
        exec(compile(block.replace("ipc:///tmp/me/engine", talking.address), "embedding.md", "exec"), names)
        printed.append(out.getvalue())
    streamed, whole, gathered, cancelled, resumed, refused = printed
    assert "seed 7" in streamed
    assert streamed.splitlines()[-1].startswith("FINISHED length ")
    assert whole.startswith("FINISHED length [")
    assert len(whole.splitlines()) >= 4
    assert gathered.startswith("[")
    assert cancelled == "True CANCELLED\n"
    assert "Tokens(request_id='long', index=" in resumed
    assert "index=0" not in resumed
    assert "state='FINISHED'" in resumed
    assert refused.startswith("BAD_OPTION ")
