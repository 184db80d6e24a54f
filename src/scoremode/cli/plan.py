"""`scoremode plan`: windows and counts of a protocol on a text, with no model loaded."""

from scoremode.cli.command import Command, named_model, print_result
from scoremode.cli.screen import Session
from scoremode.cli.text import corpus_of, protocol_of, row_seed
from scoremode.spec.flag import MOST_USED, Group
from scoremode.spec.run import Form, Model
from scoremode.spec.text import Protocol, Seed

__all__ = ["Plan"]


class Plan(Model, Protocol, Seed, Command):
    called = "plan"
    usage = "scoremode plan MODEL [flags]"
    summary = "show windows and counts, without a model"
    about = (
        "Prints what a protocol makes of a text: windows, targets, BOS, hashes. Needs a model's config "
        "and tokenizer, or --tokenizer alone; loads no weights."
    )
    seed = Seed.seed.but(group=Group("sampling"))
    form = Form("the plan", MOST_USED)

    def run(self, session: Session) -> int:
        from scoremode.checkpoint.model_files import resolve_model
        from scoremode.report.inspection import plan_document
        from scoremode.runs.planning import plan_text

        model = named_model(self)
        corpus = corpus_of(self, session, row_seed(self))
        session.clock.begin("plan")
        files = None if model is None else resolve_model(model, self.revision)
        planned = plan_text(corpus, protocol_of(self), model=files, tokenizer=self.tokenizer)
        for note in planned.notes:
            session.screen.line(note)
        print_result(session, planned.to_json(corpus), plan_document, self.form)
        return 0
