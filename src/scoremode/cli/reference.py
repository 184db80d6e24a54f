"""`scoremode reference`: a base model's predictions, kept to compare others with, or exported."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from scoremode.cli.command import Measurement, measured, model_of, print_run, request_of
from scoremode.cli.screen import Session
from scoremode.errors import UsageError
from scoremode.lib.json import print_json
from scoremode.spec.flag import Flag, Flags, Group, PathName
from scoremode.spec.run import Kept, Named, Output
from scoremode.spec.values import whole

if TYPE_CHECKING:
    from scoremode.reference.stored import StoredReference
    from scoremode.runs.request import Request

__all__ = ["Reference"]

# Flags that an export takes by itself, without a run.
_EXPORTING = {"model", "model_flag", "export_llama_cpp", "export_nats", "device", "form", "quiet",
              "verbose"}  # fmt: skip


class _Export(Flags, part="output", group=Group("export (protocol llama.cpp only)")):
    export_llama_cpp = PathName(
        "also write the file that llama-perplexity --kl-divergence reads; with a finished "
        "reference as MODEL, nothing is run",
        "FILE",
        read=Path,
    )
    export_nats = Flag[Literal[16, 24] | None, Literal[16, 24] | None](
        "reach this many nats below each row's largest entry in FILE (default: 16, as llama.cpp; "
        "24 is ik_llama.cpp's)",
        read=whole,
        choices=(16, 24),
    )


class Reference(Named, Kept, _Export, Measurement):
    called = "reference"
    usage = "scoremode reference BASE -o DIR [flags]"
    summary = "keep a base model's predictions, for scoremode kld"
    about = (
        "Scores a base model and keeps its final hidden states and its head, from which scoremode "
        "kld recomputes the base's logits exactly, in a twentieth of the space of 16-bit logits."
    )
    output: PathName = Output.output.but(
        help="keep the reference in this folder, which must not exist yet", default=None
    )

    def request(self, session: Session) -> "Request":
        return request_of(self, session, keep=self.head)

    def run(self, session: Session) -> int:
        if self.export_nats is not None and self.export_llama_cpp is None:
            raise UsageError(f"--export-nats {self.export_nats}: needs --export-llama-cpp FILE")
        from scoremode.reference.stored import StoredReference, is_run

        file, folder = self.export_llama_cpp, Path(model_of(self))
        if is_run(folder):
            file = self._only_exported(folder, session)
            kept = StoredReference(folder)
            self._export(kept, file, session)
            if self.form == "json":
                print_json(kept.record.document)
            return 0
        request = self.request(session)
        if file is not None:
            from scoremode.llama_cpp.export import check_exportable

            check_exportable(request.protocol)
            if not file.parent.is_dir():
                raise UsageError(f"--export-llama-cpp {file}: is in no folder")
        result = measured(request, session)
        if file is not None:
            self._export(StoredReference(result.folder), file, session)
        print_run(self, session, result.record.document, result.folder)
        return 0

    def _only_exported(self, folder: Path, session: Session) -> Path:
        """The file of an export without a run. Raises UsageError for a finished reference with anything
        that is of a run."""
        if session.ranks is not None:
            raise UsageError(f"{folder}: is a run already, and its export runs in one process")
        if self.export_llama_cpp is None:
            raise UsageError(
                f"{folder}: is a run already: --export-llama-cpp FILE exports a reference"
            )
        for name, flag in self.flags.items():
            if name not in _EXPORTING and (value := getattr(self, name)) != flag.default:
                raise UsageError(
                    f"{flag.spelled} {value}: {folder} is a run already, and its export takes no flag "
                    "of another"
                )
        return self.export_llama_cpp

    def _export(self, kept: "StoredReference", file: Path, session: Session) -> None:
        from scoremode.engines.torch.device import choose_device
        from scoremode.llama_cpp.export import export_llama_cpp

        screen = session.screen
        screen.words["score"] = f"writing {file}"
        session.clock.begin("score")
        export_llama_cpp(
            kept,
            file,
            nats=self.export_nats or 16,
            device=choose_device(self.device, None, None).torch,
            progress=screen.progress,
        )
        screen.clear()
        size = file.stat().st_size / 1e9
        screen.line(f"{file}: {size:.3g} GB for llama-perplexity --kl-divergence")
