"""Many models against one base: the base first, kept, then one model after the other.

While a model computes, the next one is opened, planned and hashed, which also brings its files into the
system's cache; when its scores are there its engine is closed, and what follows from the scores is
computed while the next model does. So a GPU holds one model at a time, and waits for little.
"""

import glob
import os
import re
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from scoremode.checkpoint.files import Checkpoint, open_checkpoint
from scoremode.checkpoint.gguf.names import gguf_names, named_gguf
from scoremode.checkpoint.model_files import models_in, resolve_model, resolve_tokenizer
from scoremode.engines.base import Options
from scoremode.errors import CheckpointError, ScoremodeError, UsageError, line_of
from scoremode.reference.stored import is_run
from scoremode.results.folders.finished import load_run
from scoremode.results.folders.store import drop_beginnings
from scoremode.runs.baselines import is_logits_file
from scoremode.runs.measure import measure_apart
from scoremode.runs.planning import plan_request
from scoremode.runs.request import Request, Result, TotalProgress
from scoremode.runs.sweep.bases import Bases, check_against, folder_of_base
from scoremode.runs.sweep.manifest import Board, Outcome, SweepRequest, Tell, held
from scoremode.runs.sweep.model import ModelRuns, Prepared, Stage
from scoremode.startup.warmup import check_installation, libraries

_PATTERN = re.compile(r"[*?[]")


def run_sweep(
    request: SweepRequest,
    *,
    tell: Tell = lambda _: None,
    progress: TotalProgress | None = None,
    notify: Callable[[str], None] = lambda _: None,
    stage: Callable[[str, str], None] = lambda *_: None,
) -> Outcome:
    """Measures every model under every pair, but for what is done; what fails is noted and passed over.

    - `tell`: gets every entry that ends; `notify` lines for the user.
    - `stage`: called with a stage that begins, and of which model.

    Raises ScoremodeError where the base can't be measured, or nothing can be begun.
    """
    check_installation()
    first = request.pairs[0]
    if first.ranks is not None:
        raise UsageError("several models and several devices: give --devices with one MODEL")
    if rule := next((p.protocol.stop_when for p in request.pairs if p.protocol.stop_when), None):
        raise UsageError(f"--stop-when {rule}: is for one MODEL: several are ranked on all windows")
    models = all_models(request.models, first.revision)
    request = replace(request, pairs=_resolved(request.pairs))
    with held(request.output), ExitStack() as at_end:
        at_end.callback(libraries.settle)
        drop_beginnings(request.output)
        board = Board(request, models, tell)
        board.write()
        if first.options.runs_beside:
            libraries.modules(*first.options.modules)
        _sweep(request, board, Stage(_once(notify), progress, stage))
        return board.outcome()


def _resolved(pairs: Sequence[Request]) -> tuple[Request, ...]:
    """The pairs with the files of the tokenizer and the base that all have, each found once."""
    first = pairs[0]
    tokenizer = None if first.tokenizer is None else resolve_tokenizer(first.tokenizer)
    base = first.base_files()
    return tuple(
        replace(pair, tokenizer=tokenizer, reference=base or pair.reference) for pair in pairs
    )


def _once(notify: Callable[[str], None]) -> Callable[[str], None]:
    """`notify` without what it has been told: of a text, say, which all models have."""
    told: set[str] = set()

    def tell(line: str) -> None:
        if line not in told:
            told.add(line)
            notify(line)

    return tell


def _sweep(request: SweepRequest, board: Board, stage: Stage) -> None:
    """Runs the base where it is a model, then every model, then takes the runs that were done."""
    pairs = [replace(pair, output=request.output, resume="if-there") for pair in request.pairs]
    base = Path(str(pairs[0].reference))
    jobs: list[int | None] = [i for i, model in enumerate(board.models) if not is_run(Path(model))]
    if not (is_run(base) or is_logits_file(base)):
        files = pairs[0].base_files()
        assert files is not None
        checkpoint = open_checkpoint(files, code=pairs[0].options.trust_remote_code)
        models = [board.models[i] for i in jobs if i is not None]
        options = _in_one_dtype(pairs[0], checkpoint, models).of_base(checkpoint)
        of_base = [_capture(pair, options) for pair in pairs]
        jobs.insert(0, None)
    else:
        of_base = []
        for number, pair in enumerate(pairs):
            board.reference(number, Path(str(pair.reference)))
    # Where a model's process is its own, each run is a command's.
    work = _in_one_process if pairs[0].options.runs_beside else _apart
    work(jobs, pairs, of_base, board, stage)
    for i, model in enumerate(board.models):
        if is_run(Path(model)):
            _take(board, i, Path(model), pairs)


def _in_one_process(
    jobs: list[int | None], pairs: list[Request], of_base: list[Request], board: Board, stage: Stage
) -> None:
    bases = Bases()
    runs: ModelRuns | None = None
    prepared = Prepared(_requests(pairs, of_base, board, jobs[0])) if jobs else None
    try:
        for number, job in enumerate(jobs):
            assert prepared is not None
            named = stage.named(_title(board, job))
            requests = _requests(pairs, of_base, board, job)
            current = ModelRuns(requests, prepared, bases, board, job, named)
            following = jobs[number + 1 :]
            prepared = (
                Prepared(_requests(pairs, of_base, board, following[0])) if following else None
            )
            current.score(after=runs)
            if runs is not None:
                runs.settle()
            runs = current
            if job is None:
                _put_in(pairs, current.kept(), board)
        if runs is not None:
            runs.settle()
    finally:
        if runs is not None:
            runs.wait()
        if prepared is not None:
            prepared.close()


def _apart(
    jobs: list[int | None], pairs: list[Request], of_base: list[Request], board: Board, stage: Stage
) -> None:
    for job in jobs:
        named = stage.named(_title(board, job))
        requests = _requests(pairs, of_base, board, job)
        if job is None:
            _put_in(pairs, capture_apart(requests, named), board)
        else:
            _measure_each(requests, board, job, named)


def capture_apart(requests: Sequence[Request], stage: Stage) -> list[Path]:
    """The folders of the base's references, one for each of its requests. Raises ScoremodeError."""
    folders = []
    files = resolve_model(requests[0].model, requests[0].revision)
    for request in (replace(each, model=files) for each in requests):
        checkpoint = open_checkpoint(files, code=request.options.trust_remote_code)
        planned = plan_request(request, checkpoint)
        output = folder_of_base(request.output, checkpoint, planned, request)
        folders.append(_measured("the base", replace(request, output=output), stage).folder)
    return folders


def _measure_each(requests: Sequence[Request], board: Board, job: int, stage: Stage) -> None:
    """Runs one model under each pair; what fails is noted."""
    model = requests[0].model
    for number, request in enumerate(requests):
        board.begin(job, number)
        try:
            model = resolve_model(model, request.revision)
            result = _measured(model.name, replace(request, model=model), stage)
        # Not hidden: the entry has the line.
        except Exception as error:  # noqa: BLE001
            board.failed(job, number, line_of(error))
        else:
            board.done(job, number, result)


def _measured(label: str, request: Request, stage: Stage) -> Result:
    def show(name: str, _: str) -> None:
        stage.begin(name, stage.name)

    return measure_apart(label, request, show, stage.notify, stage.progress)


def _requests(
    pairs: list[Request], of_base: list[Request], board: Board, job: int | None
) -> list[Request]:
    if job is None:
        return of_base
    model = board.models[job]
    label = board.manifest.get("labels", {}).get(model)
    return [replace(pair, model=model, label=label) for pair in pairs]


def _put_in(pairs: list[Request], folders: list[Path], board: Board) -> None:
    """Has each pair be compared with its reference."""
    for number, folder in enumerate(folders):
        pairs[number] = replace(pairs[number], reference=str(folder), reference_revision=None)
        board.reference(number, folder)


def _title(board: Board, job: int | None) -> str:
    if job is None:
        return "the base"
    return f"{board.labels[job]} ({job + 1} of {len(board.models)})"


def _in_one_dtype(pair: Request, base: Checkpoint, models: list[str]) -> Options:
    """The options of the base, which runs once: in its own dtype where that has 16 bits, else in that
    of the first of `models` that can be opened. Raises ScoremodeError."""
    options, code = pair.options, pair.options.trust_remote_code
    if options.dtype != "auto":
        return options
    own = options.in_dtype_of(base)
    if own.dtype in ("bfloat16", "float16"):
        return options
    for model in models:
        try:
            checkpoint = open_checkpoint(resolve_model(model, pair.revision), code=code)
        # Not hidden: its own entries have the line.
        except ScoremodeError:
            continue
        alike = options.in_dtype_of(checkpoint)
        # What is left to the engine stays so: a base that was kept before is the same one.
        return options if alike.dtype == own.dtype else alike
    return options


def _capture(request: Request, options: Options) -> Request:
    """The request that measures its base, whose folder is still to be named."""
    assert request.reference is not None
    return replace(
        request,
        model=request.reference,
        options=options,
        revision=request.reference_revision,
        quantization=None,
        reference=None,
        reference_revision=None,
        full=False,
        draft=None,
        noise_floor=None,
        gates=None,
        token_text=False,
        label=None,
        keep="stored",
    )


def _take(board: Board, model: int, folder: Path, pairs: list[Request]) -> None:
    """Takes a finished run for the pairs that it is of. One of none is an error."""
    try:
        record = load_run(folder)[0]
        reasons = []
        for number, pair in enumerate(pairs):
            try:
                check_against(record, pair)
            # Not hidden: it is why the run is not of this pair.
            except Exception as error:  # noqa: BLE001
                reasons.append(line_of(error))
            else:
                board.done(model, number, Result(folder, record))
        if len(reasons) == len(pairs):
            raise UsageError(reasons[0])
    # Not hidden: the entries have the line.
    except Exception as error:  # noqa: BLE001
        for number in range(len(pairs)):
            board.failed(model, number, line_of(error))
    else:
        for number in range(len(pairs)):
            board.leave_out(model, number)


def all_models(names: Sequence[str], revision: str | None = None) -> list[str]:
    """Every model that is meant, in the order of `names`, those of a pattern by their names.

    `hub/repo:*.gguf` stands for a repository's GGUF files, `folder/*.gguf` for a folder's, `folder/*`
    for all models in it, as a folder of several models that is none itself does. Of a split file only
    the first part counts, and what is beside models (mmproj, imatrix) not at all.

    Raises CheckpointError for a pattern that nothing fits, UsageError for a model that is named twice.
    """
    found: list[str] = []
    for name in names:
        is_here = os.path.exists(name)  # noqa: PTH110  Path.exists raises for a name too long
        if _PATTERN.search(name) and not is_here:
            found += _fitting(name, revision)
        elif is_here and len(models := models_in(Path(name))) > 1:
            found += [os.path.join(name, model) for model in models]  # noqa: PTH118  as it was typed
        else:
            found.append(name)
    seen: dict[str, str] = {}
    for name in found:
        place = os.path.realpath(name) if os.path.exists(name) else name  # noqa: PTH110
        if place in seen:
            raise UsageError(f"the same model twice: {seen[place]} and {name}")
        seen[place] = name
    return found


def _fitting(pattern: str, revision: str | None) -> list[str]:
    if (hub := named_gguf(pattern)) is not None:
        repo, wanted = hub
        names = [
            f"{repo}:{name}"
            for name in gguf_names(repo, revision)
            if fnmatchcase(name, wanted) or fnmatchcase(PurePosixPath(name).name, wanted)
        ]
    else:
        names = list(_models_here(sorted(glob.glob(pattern))))  # noqa: PTH207  a pattern may be absolute
    if not names:
        raise CheckpointError(f"{pattern}: no model fits this pattern")
    return names


def _models_here(paths: Sequence[str]) -> list[str]:
    from scoremode.checkpoint.gguf.names import model_files

    folders = [path for path in paths if os.path.isdir(path)]  # noqa: PTH112
    files = [path for path in paths if path.lower().endswith(".gguf") and path not in folders]
    return sorted([*folders, *model_files(files)])
