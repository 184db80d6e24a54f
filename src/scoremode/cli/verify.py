"""`scoremode verify`: do the engines agree with a float32 reference, and with each other?"""

from scoremode.cli.command import Command, model_of, print_result, reads_model
from scoremode.cli.engines import options_of, reference_options
from scoremode.cli.screen import Session
from scoremode.cli.text import corpus_of, protocol_of
from scoremode.errors import InvalidMeasurement, UsageError
from scoremode.spec.engine import Engine
from scoremode.spec.flag import MOST_USED, Flag, Flags, check_least
from scoremode.spec.run import Form, Model, Named, Quiet
from scoremode.spec.text import Protocol
from scoremode.spec.values import whole

__all__ = ["Verify"]

_ENGINES = ("torch", "vllm")


class _Sample(Flags, group=MOST_USED):
    engines: Flag[str, str] = Flag(
        "verify torch (default), vllm, or torch,vllm; flags for one engine go to that one, and "
        "the torch engine's flags except --dtype to the reference as well",
        "NAMES",
        default="torch",
    )
    windows: Flag[int, int] = Flag("draw N windows (default: 8)", "N", read=whole, default=8)
    seed: Flag[int, int] = Flag(
        "draw the windows with this seed (default: 0)", "S", read=whole, default=0
    )


class _Printed(Flags, group=MOST_USED):
    form = Form("all of it")
    quiet = Quiet.quiet


class Verify(Named, _Sample, Model, Protocol, _Printed, Engine, Command):
    called = "verify"
    usage = "scoremode verify MODEL [flags]"
    summary = "compare engines with a float32 reference, and with each other"
    about = (
        "Scores sampled windows with each engine and with a float32 reference (the torch engine in "
        "float32, its row sums in float64), and reports whether the differences are within rounding. "
        "Exit code 0: all engines agree; 3: some don't."
    )

    def run(self, session: Session) -> int:
        model = model_of(self)
        names = _names(self.engines)
        check_least(1, self, "windows")
        check_least(0, self, "seed")
        options, reference = options_of(self, names), reference_options(self)
        from scoremode.report.checks import verify_document
        from scoremode.runs.rescore.verify import VerifyRequest, verify

        reads_model(session, model)
        request = VerifyRequest(
            model=model,
            corpus=corpus_of(self, session),
            protocol=protocol_of(self),
            engines=options,
            reference=reference,
            windows=self.windows,
            seed=self.seed,
            revision=self.revision,
            tokenizer=self.tokenizer,
            quantization=self.quantization,
            command=session.command,
        )
        screen = session.screen
        result = verify(request, progress=screen.progress, notify=screen.line, tell=screen.stage)
        print_result(session, result, verify_document, self.form, quiet=self.quiet)
        return 0 if result["agree"] else InvalidMeasurement.exit_code


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in _ENGINES:
            raise UsageError(f"--engines {text}: {name or 'an empty name'} is not one of "
                             f"{', '.join(_ENGINES)}")  # fmt: skip
        if names.count(name) > 1:
            raise UsageError(f"--engines {text}: {name} is named twice")
    return names
