"""The proof of the lifecycle: the real core explored exhaustively, and every change of a table row noticed.

Owns the engine's world for `statemachine/explore.py`, the reference that knows no machine, the scopes, the
sometimes-properties and the run over mutants. `cli/check.py` and tests call `verdict.py`; nothing else does.
"""
