"""dsparkd: an engine for DSpark speculative decoding."""

__version__ = "0.1.0"
