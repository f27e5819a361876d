"""What a policy may say of a row when a plain length does not say enough: how much to verify, and whether to draft.

Owns the value and how limits lower it; `plan.py` reads it.
"""

import attrs


@attrs.frozen
class Want:
    """Verify `verify` of the held drafts, none included, and draft a whole block anew or none.

    For policies that look at the draft itself. What is held beyond `verify` is thrown away.
    """

    verify: int
    propose: bool = True


def lowered(want: int | Want, most: int, *, block_len: int) -> int | Want:
    """The want under a maximum of `most` drafts; a maximum of 0 switches drafting off.

    A plain 0 verifies all that is held, which is a whole block: under a smaller maximum as many as that allows.
    """
    if not isinstance(want, Want):
        return Want(most, propose=False) if want == 0 < most < block_len else min(want, most)
    return attrs.evolve(want, verify=min(want.verify, most)) if most > 0 else 0
