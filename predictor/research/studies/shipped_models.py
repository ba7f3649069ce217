"""The shipped models, the encoder's second opinion beside the lexical one, on files that trained neither."""

import numpy as np

from predictor.card import read_card
from predictor.errors import ModelError
from predictor.loading import find_model, load_encoder, load_model
from predictor.research.studies.paper import Cell, Table
from predictor.research.studies.traffic import (
    MIN_PAIRED,
    MIN_STREAMED,
    SEED,
    SOON,
    Progress,
    draw_stream,
    serve,
    streamed,
)
from predictor.research.training.dataset import Dataset


def shipped(datasets: list[Dataset], streams_a_file: int, progress: Progress) -> Table:
    """Serve streams of one file and one model with the shipped models, by words alone and with the encoder.

    Nothing is trained here: files that either model was trained on are not served, and what they ask is left
    out of the others. The columns are of pairs that PARS's filter keeps, of requests 100 to 200 and of the
    late ones as in `online`, and of the late Short and Long ones; "+" is with the encoder's opinion of every
    prompt, as it is had of what waits long enough.
    """
    encoder = load_encoder()
    trained = {*read_card(find_model(None)).data, *encoder.card.data}
    known = {prompt for data in datasets if data.name in trained for prompt in data.prompts}
    generator, rows = np.random.default_rng(SEED), list[list[Cell]]()
    for data in datasets:
        if data.name in trained:
            continue
        fresh = data.rows([row for row, prompt in enumerate(data.prompts) if prompt not in known])
        models = streamed(fresh, streams_a_file, generator)
        if not models:
            continue
        progress(f"the encoder reads {len(fresh.prompts)} prompts of {data.name}")
        opinions = [encoder.encode(prompt) for prompt in fresh.prompts]
        for model in models:
            order = draw_stream(fresh, model, generator)
            stream = [fresh.prompts[row] for row in order], fresh.tokens[order, model]
            alone = serve(load_model(), *stream)
            both = serve(load_model(), *stream, [opinions[row] for row in order])
            rows.append([data.name, data.models[model]])
            for some in (SOON, alone.late):
                rows[-1] += [*alone.pairs(some), *both.pairs(some)]
            rows[-1] += [*alone.accuracies(alone.late), *both.accuracies(alone.late)]
    if not rows:
        raise ModelError(
            f"no file that trained neither model holds one with {MIN_STREAMED} answers, {MIN_PAIRED} of them "
            f"Short and {MIN_PAIRED} Long"
        )
    # Half a stream may hold no Long answer: there is nothing to rank then.
    means = np.nanmean(np.array([row[2:] for row in rows], float), axis=0)
    rows.append(["mean", "", *means.tolist()])
    ways = ["static", "learnt", "static+", "learnt+"]
    columns = ["file", "model", *(f"{when}{way}" for when in ("soon ", "late ", "classes ") for way in ways)]
    return Table("The shipped models on files that trained neither", columns, rows)
