"""Capturing a pass over static buffers, to run it again without its Python: a CUDA graph, and its twin on the CPU.

Both fix at capture what a graph fixes: each operation, each value of the host that went into it, each tensor that was
not made within. A field that is rebound later is not seen, and a value that comes back to the host is refused. So what
would break on a device breaks on a CPU too. Owns nothing that lasts; `graphs.py` says what a pass is.
"""

from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_map

from ..statemachine.errors import LocalError

Replay = Callable[[], None]
Capture = Callable[[Callable[[], None]], Replay]


@attrs.frozen
class _Made:
    """Stands for a tensor that an earlier operation of the recording makes: its place among them."""

    place: int


class Recording(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Operations with their arguments, in their order; `replay` runs exactly these."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[tuple[Any, Any, Any, list[int]]] = []
        self.num_made = 0
        self._made: dict[int, tuple[int, Tensor]] = {}  # by id; the tensor is kept, so that no other gets its id

    def __torch_dispatch__(self, operation: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        result = operation(*arguments, **(options or {}))
        outputs = [result] if isinstance(result, Tensor) else result
        if not isinstance(outputs, list | tuple) or not all(isinstance(one, Tensor) for one in outputs):
            raise LocalError(f"{operation} reads a value back to the host: it would be fixed by a capture")
        arguments, options = tree_map(self._placed, (arguments, options or {}))
        self.operations.append((operation, arguments, options, [self._place(one) for one in outputs]))
        return result

    def _placed(self, value: Any) -> Any:
        return _Made(self._made[id(value)][0]) if isinstance(value, Tensor) and id(value) in self._made else value

    def _place(self, made: Tensor) -> int:
        if id(made) not in self._made:
            self._made[id(made)] = (self.num_made, made)
            self.num_made += 1
        return self._made[id(made)][0]

    def close(self) -> None:
        """Let go of what was made while recording."""
        self._made.clear()

    def replay(self) -> None:
        made: list[Any] = [None] * self.num_made

        def value_of(value: Any) -> Any:
            return made[value.place] if type(value) is _Made else value

        for operation, arguments, options, places in self.operations:
            result = operation(*tree_map(value_of, arguments), **tree_map(value_of, options))
            for place, one in zip(places, [result] if isinstance(result, Tensor) else result, strict=True):
                made[place] = one


def capture_on_cpu(run: Callable[[], None]) -> Replay:
    """The twin of a CUDA graph: records each operation of one run, and runs those again."""
    run()
    recording = Recording()
    with recording:
        run()
    recording.close()
    return recording.replay


class CudaCapture:
    """Captures in CUDA graphs that share one memory pool: no two of them run at once."""

    def __init__(self) -> None:
        self._pool: Any = None

    def __call__(self, run: Callable[[], None]) -> Replay:
        """Capture `run`, after the runs on a side stream that torch asks for."""
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                run()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            run()
        self._pool = graph.pool()
        return graph.replay


def capturing(tensor: Tensor) -> bool:
    """Whether a pass is being captured: values of tensors cannot be looked at then."""
    if tensor.is_cuda:
        return torch.cuda.is_current_stream_capturing()
    return isinstance(_get_current_dispatch_mode(), Recording)
