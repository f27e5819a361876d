"""What all messages have in common: the tagged base, the version, the limits.

Owns nothing that travels by itself. `client_messages.py` and `worker_messages.py` build on it.
"""

from typing import Annotated

import msgspec

PROTOCOL_VERSION = 1
MAX_ID_LEN = 256  # characters: answers and logs repeat an id
RequestId = Annotated[str, msgspec.Meta(max_length=MAX_ID_LEN)]


class Message(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, forbid_unknown_fields=True):
    """Base of all messages: the tag is the class name, unknown fields are refused."""
