"""`scoremode ppl`: the perplexity of a model, with its record."""

from typing import TYPE_CHECKING

from scoremode.cli.command import Measurement, measured, print_run, request_of, swaps_in
from scoremode.cli.screen import Session
from scoremode.spec.run import Named, Swap

if TYPE_CHECKING:
    from scoremode.runs.request import Request

__all__ = ["Ppl"]


class Ppl(Named, Swap, Measurement):
    called = "ppl"
    usage = "scoremode ppl MODEL [flags]"
    summary = "measure the perplexity of a model"
    about = "Measures the exact perplexity of a model's quantized weights under a protocol."

    def request(self, session: Session) -> "Request":
        return request_of(self, session, swaps=swaps_in(self.swap))

    def run(self, session: Session) -> int:
        result = measured(self.request(session), session)
        print_run(self, session, result.record.document, result.folder)
        return 0
