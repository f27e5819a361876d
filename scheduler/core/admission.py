"""Whether a submit is taken: one verdict with a code, judged against static limits and the ledger.

Owns refusals of well-formed requests; malformed ones never reach the core (`service/translate.py` refuses them).
ENGINE's table decides what becomes of the verdict.
"""

from ...statemachine import engine, worker
from ...statemachine.engine import Verdict
from .events import Submit
from .ledger import Ledger
from .limits import Limits


def judge(ledger: Ledger, limits: Limits, submit: Submit) -> Verdict:
    """Return the first reason to refuse, or a verdict without a code."""
    prompt_len = len(submit.prompt)
    longest = limits.max_model_len - 1
    if limits.max_prompt_len is not None:
        longest = min(longest, limits.max_prompt_len)
    if submit.request in ledger.requests:  # first: said again, it is no new request whatever holds for those
        return Verdict("DUPLICATE_ID", "a request of this id is live at this client")
    if ledger.engine.state is not engine.State.OPEN:
        return Verdict("DRAINING", "the engine finishes what is live and takes no new request")
    if submit.client not in ledger.clients:
        return Verdict("UNKNOWN_CLIENT", f"client {submit.client} has not said hello")
    if ledger.worker.state is worker.State.ABANDONED:
        return Verdict("NO_WORKER", f"no worker is left to serve: {ledger.worker.reason}")
    if prompt_len < 1:
        return Verdict("EMPTY_PROMPT", "prompt_token_ids = []: expected one token or more")
    if prompt_len > longest:
        return Verdict("PROMPT_TOO_LONG", f"prompt of {prompt_len} tokens: expected at most {longest}")
    if submit.options.max_tokens < 1:
        return Verdict("BAD_OPTION", f"max_tokens = {submit.options.max_tokens}: expected 1 or more")
    if len(ledger.queue) >= limits.max_queue:
        message = f"{len(ledger.queue)} requests wait: expected fewer than max_queue = {limits.max_queue}"
        return Verdict("QUEUE_FULL", message)
    live, most = len(ledger.clients[submit.client].requests), limits.max_client_requests
    if most is not None and live >= most:
        return Verdict("CLIENT_LIMIT", f"{live} requests of this client are live: max_client_requests = {most}")
    return Verdict()
