"""Training: batches in, a run directory out. The step is in updates.py; what is here is there so that no work is lost
and a person can watch.

What makes a run repeatable: a step's batch is a function of the step (:mod:`regard.data.batches`), dropout is seeded
from (seed, step, part, process), the learning rate is a function of the step. A checkpoint therefore holds weights, the
optimizer's memory and a few numbers, and a run that was killed and resumed ends where it would have ended.
"""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.config import InputError, ModelConfig, Recurrent, RegardError
from regard.data.batches import Batches, make_batches
from regard.data.captions import Matches
from regard.data.store import DataDir
from regard.decode.chat import chat_template
from regard.model import Model
from regard.nn.lora import merged
from regard.recipe import Recipe, completed, model_config
from regard.train import checkpoint, tasks, tune
from regard.train.distributed import World, gathered, scattered
from regard.train.loader import Loader
from regard.train.optim import learning_rate
from regard.train.run import Run
from regard.train.updates import Updates
from regard.train.watch import Watch, shown
from regard.weights import write_weights


class Stopped(Exception):
    """A signal asked for an end; everything is saved."""

    def __init__(self, number: int):
        self.number = number
        super().__init__(f"stopped by {signal.Signals(number).name}")


class Trainer(Updates):
    """One run: its updates, its data, and where it stands."""

    def __init__(self, recipe: Recipe, data: DataDir, run: Run, world: World, watch: Watch):
        config = model_config(recipe.model, **data.counts())
        if world.shard and data.task == "match":
            raise InputError("--shard: not for match, whose temperature is a single number; leave it out")
        if world.shard and recipe.train.optimizer == "muon":
            raise InputError("--shard: not with train.optimizer ('muon'), which needs whole matrices; leave one out")
        recipe = settled(recipe, config, world.device)
        self.recipe, self.data, self.run, self.watch, how = recipe, data, run, watch, recipe.train
        self.batches, self.held_out = make_batches(data, "train", how, config), None
        if "valid" in data.splits:
            self.held_out = make_batches(data, "valid", how, config, shuffled=False)
        self.shown = data.split("valid" if "valid" in data.splits else "train")
        if how.bleu:
            if self.held_out is None:
                raise InputError(f"train.bleu ({how.bleu}) needs held-out pairs; give data.valid or data.hold_out")
            self._bleu_of([""])  # what is missing for it shows now, not after an hour
        super().__init__(config, data.task, how, world, one_shape=bool(how.packed) or data.images is not None)

        # Where it stands: all that a checkpoint holds beside tensors.
        self.number = 0  # updates done
        self.parts = self.train.micro_batches
        self.seconds = 0.0
        self.best: dict[str, Any] = {}
        self.chosen_by = CHOSEN_BY.get(self.data.task, "")
        self.bad_validations = 0
        self.begun = time.perf_counter()

    # -- the loop ----------------------------------------------------------------------

    def fit(self) -> None:
        """Train to the end, or until a signal."""
        loader = self._loader()
        try:
            with self._signals(), self.watch.training(self.number, self.train.steps):
                self._begin_pace(loader)
                while self.number < self.train.steps and not self._out_of_patience():
                    loader = self._advance(loader)
                    if self._due(self.train.log_every) or self.device.type == "cpu":
                        self._check_finite()
                    if self._due(self.train.log_every):
                        self._log(loader)
                    elif self.device.type == "cpu":  # to look is no wait there
                        self.watch.show(self._line(loader), int(self.sums[4]))
                    if self._due(self.train.valid_every):
                        self.validate()
                    stop = self._asked_to_stop()
                    if self._due(self.train.checkpoint_every) or stop or self._out_of_patience():
                        self.save(regular=self._due(self.train.checkpoint_every))
                    if stop and self.number < self.train.steps:
                        if not self.best:  # no validation yet: something to use is there all the same
                            self._export(self.average or self.weights)
                        raise Stopped(self.signal or signal.SIGTERM)
                    if self._due(self.train.valid_every) or self._due(self.train.checkpoint_every):
                        self._begin_pace(loader)  # what was just done is not training
        finally:
            loader.stop()
        self.finish()

    def _due(self, every: int) -> bool:
        return self.number % every == 0 or self.number == self.train.steps

    def _loader(self) -> Loader:
        return Loader(
            self.batches,
            self.number + 1,
            parts=self.parts,
            rank=self.world.rank,
            world=self.world.size,
            device=self.device,
        )

    def _advance(self, loader: Loader) -> Loader:
        """One update; with less memory than it takes, in twice as many parts."""
        self.update, fits = next(loader), True
        try:
            self.step(self.update)
        except torch.OutOfMemoryError:
            fits = False
        if not fits:  # out here nothing holds on any more to what the step had made
            loader.stop()
            self._halve()
            return self._advance(self._loader())
        self.number += 1
        self.tokens += self.update.size.tokens
        self.watch.stepped(self.number)
        return loader

    def _halve(self) -> None:
        """Work in twice as many parts from here on. Several processes could not agree on that in mid-step."""
        if self.world.size > 1 or all(len(part.inputs) == 1 for part in self.update.parts):
            raise RegardError(
                f"out of memory at step {self.update.step} in {self.parts} parts; begin a new run with more"
                f" train.micro_batches, or fewer {self.batches.unit} a batch (train.batch_{self.batches.unit})"
            )
        self._clear()
        torch.cuda.empty_cache()
        self.parts *= 2
        self.watch.say(f"out of memory: the same batch in {self.parts} parts from step {self.update.step} on")

    def _begin_pace(self, loader: Loader) -> None:
        self.pace = time.perf_counter(), loader.waited
        self.tokens = 0

    def _line(self, loader: Loader) -> dict[str, Any]:
        """What there is to say since the last line. It waits for the device."""
        total, count, skipped, *_ = self.sums.tolist()
        begun, waited = self.pace
        took = time.perf_counter() - begun
        return {
            "step": self.number,
            "kind": "train",
            "loss": total / count if count else None,
            "lr": learning_rate(self.train, self.number),
            "gradient": float(self.last_norm),
            "skipped": int(skipped),
            f"{self.batches.unit}_per_second": self.tokens / took,
            "waited": (loader.waited - waited) / took,
            "seconds": self._elapsed(),
        }

    def _log(self, loader: Loader) -> None:
        """A line of metrics: the only place where the loop waits for a GPU."""
        line, all_skipped = self._line(loader), int(self.sums[4])
        self.sums[:3] = 0
        self._note(line)
        self.watch.logged(line, all_skipped)
        self._begin_pace(loader)

    def _elapsed(self) -> float:
        return self.seconds + time.perf_counter() - self.begun

    def _note(self, line: dict[str, Any]) -> None:
        if self.world.first:
            # A number that JSON has not is none.
            self.run.note({k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()})

    def _check_finite(self) -> None:
        """Give up after too many updates in a row whose loss or gradient was not finite, and keep the batch."""
        in_a_row = int(self.sums[3])
        if in_a_row < self.train.max_skipped:
            return
        path = self.run.path / f"not-finite-step-{self.number}-of-process-{self.world.rank}.safetensors"
        tensors = {f"{i}.{n}": t for i, part in enumerate(self.update.parts) for n, t in part.tensors().items()}
        write_weights(path, tensors)
        intact = ", the last checkpoint is intact" if checkpoint.checkpoints(self.run.path) else ""
        clip = f"less than train.clip ({self.train.clip})" if self.train.clip else "with train.clip, which is off"
        raise RegardError(
            f"step {self.number}: the loss or its gradient was not finite {in_a_row} times in a row; the batch is in"
            f" {path}{intact}; begin a new run with less than train.lr ({self.train.lr}), or {clip}"
        )

    # -- held-out data -----------------------------------------------------------------

    @torch.no_grad()
    def validate(self) -> None:
        """Score the held-out data, show what the model says, and keep the weights if they are the best so far."""
        reached, begun = self._elapsed(), time.perf_counter()
        with self.averaged():
            found = self.score()
            better = found is None or _is_better(found, self.best, self.chosen_by)
            if better:
                self.best = {"step": self.number, **(found or {})}
                self.bad_validations = 0
                self._export(self.weights)
            else:
                self.bad_validations += 1
            if found is None:
                return
            samples = self.samples()
            took = time.perf_counter() - begun
            self._note({"step": self.number, "kind": "valid", **found, "seconds": reached, "took": took})
            self.watch.validated(self.number, found, samples, best=better)

    def score(self) -> dict[str, float] | None:
        """Loss and scores on the held-out data; None where there is none."""
        if self.held_out is None:
            return None
        if isinstance(self.held_out, Matches):
            with self.decoding():
                return tasks.retrieval(self.model, self.held_out, self.device)
        sums: dict[str, Tensor] = {}
        with self.evaluating():
            for i in range(len(self.held_out)):
                batch = self.held_out.part(i, self.world.rank, self.world.size).to(self.device)
                # Sharded weights come together only when the whole module is called.
                beta = self.train.beta
                tally = self.objective(batch, True) if self.world.shard else tasks.tally(self.model, batch, beta)
                sums = {name: value + sums.get(name, 0) for name, value in tally.items()}
        together = self.world.sum(torch.cat([value.flatten() for value in sums.values()]))
        parts = together.split([value.numel() for value in sums.values()])
        found = tasks.scores({n: p.view_as(sums[n]).tolist() for n, p in zip(sums, parts, strict=True)})
        return {**found, "bleu": self.bleu()} if self.train.bleu else found

    def bleu(self) -> float:
        """sacreBLEU on the first held-out pairs: the first process's. Where each has a shard, all translate with it."""
        value = torch.zeros((), dtype=torch.float64, device=self.device)
        if self.world.first or self.world.shard:
            said_of, column = (
                (tasks.captions, "image") if self.data.task == "caption" else (tasks.translations, "source")
            )
            rows = range(min(self.train.bleu, len(self.shown[column])))
            with self.decoding():
                said = said_of(self.model, self.data, self.shown, rows)
            if self.world.first:
                value += self._bleu_of(said)
        return self.world.sum(value).item()

    def _bleu_of(self, said: list[str]) -> float:
        score = tasks.caption_bleu if self.data.task == "caption" else tasks.bleu
        return score(self.data, self.shown, said)

    def samples(self) -> list[dict[str, str]]:
        with self.decoding():
            return list(tasks.samples(self.model, self.data, self.shown))

    def _out_of_patience(self) -> bool:
        return 0 < self.train.patience <= self.bad_validations

    def finish(self) -> None:
        """Average the last checkpoints if asked to, and draw the curves."""
        if self.train.average:
            self._average_checkpoints()
        if not self.best:  # no validation gave a number
            self._export(self.weights)
        if self.world.first:
            self.watch.finished(self.run, self.number, self.best, self._elapsed())

    @torch.no_grad()
    def _average_checkpoints(self) -> None:
        folders = [f for f in checkpoint.checkpoints(self.run.path) if checkpoint.read_facts(f)["regular"]]
        folders = folders[-self.train.average :]
        if not folders:
            return
        kept = {n: w.clone() for n, w in self.weights.items()}
        sums = {n: torch.zeros_like(w, dtype=torch.float64) for n, w in self.weights.items()}
        for folder in folders:
            _, tensors = checkpoint.load(folder)
            for name, value in tensors["weights"].items():
                sums[name] += scattered(value, self.parameters[name]).to(self.device)
        self.put({name: total / len(folders) for name, total in sums.items()})
        found = self.score()
        if found is None or _is_better(found, self.best, self.chosen_by):
            self._export(self.weights)
            self.best = {"step": self.number, **(found or {}), "average": len(folders)}
        if found is not None:
            self._note({"step": self.number, "kind": "average", "checkpoints": len(folders), **found})
            self.watch.say(f"average of {len(folders)} checkpoints: {shown(found)}")
        self.put(kept)

    # -- saving ------------------------------------------------------------------------

    def _export(self, weights: dict[str, Tensor]) -> None:
        whole = {name: gathered(w, self.parameters[name]) for name, w in weights.items()}
        if self.world.first:
            write_weights(self.run.weights, merged(whole, self.train.lora_alpha) if self.train.lora else whole)

    def tensors(self) -> Iterator[tuple[str, str, Tensor]]:
        """Everything of this run that is a tensor, whole: (file, name, value). Every process must ask for all of it."""
        yield from super().tensors()
        for split, value in self.references().items():
            yield "reference", split, value

    def save(self, *, regular: bool) -> None:
        """A checkpoint of where the run stands. One that a signal asked for, between the regular ones, is not."""
        facts = {
            "step": self.number,
            "regular": regular,
            "parts": self.parts,
            "seconds": self._elapsed(),
            "best": self.best,
            "bad_validations": self.bad_validations,
            "sums": self.sums.tolist(),
        }
        if self.world.first:
            checkpoint.save(self.run.path, self.number, self.tensors(), facts)
            checkpoint.clean(self.run.path, self.train.keep)
        else:
            for _ in self.tensors():
                pass
        self.world.wait()

    @torch.no_grad()
    def resume(self) -> None:
        """Stand where the newest checkpoint stands; at the beginning, if there is none."""
        folders = checkpoint.checkpoints(self.run.path)
        facts: dict[str, Any] = {"step": 0}
        if not folders and "from" in self.run.config():
            raise InputError(
                f"{self.run.path}: was ended before it had the weights of {self.run.config()['from']['path']}; remove"
                " it, and begin again"
            )
        if folders:
            facts, tensors = checkpoint.load(folders[-1])
            self.take(tensors)
            self.refer(tensors.get("reference", {}))
            self.number, self.parts, self.seconds = facts["step"], facts["parts"], facts["seconds"]
            self.best, self.bad_validations = facts["best"], facts["bad_validations"]
            self.sums.copy_(torch.tensor(facts["sums"], dtype=torch.float64))
        if self.world.first:
            checkpoint.clean(self.run.path, self.train.keep)
            self.run.cut_metrics(facts["step"])
        self.world.wait()

    @torch.no_grad()
    def begin_from(self, given: Model) -> dict[str, Any]:
        """Begin with the weights of another model, and tell what was taken, what is new and what was left behind; the
        optimizer and the schedule begin anew."""
        shapes = {name: tuple(w.shape) for name, w in self.parameters.items()}
        begun = tune.beginning(given, self.config, shapes, self.data)
        for name, value in begun.weights.items():
            for weights in (self.weights, self.average):
                if name in weights:
                    weights[name].copy_(scattered(value, self.parameters[name]))
        if self.data.task == "prefer":
            self._ask_reference()
        self.watch.say(f"from {given.path}: {begun}")
        return tune.told(given, begun)

    def _ask_reference(self) -> None:
        """What the model thinks of every pair before it is trained: the reference that it is held to."""
        found = {}
        for split, batches in self._splits().items():
            batches.reference = np.zeros(len(batches.columns["prompt"]), np.float32)
            of_pairs = torch.from_numpy(batches.reference.copy())
            with self.evaluating():
                for step in range(len(batches)):
                    rows = batches.rows(step)
                    margin, _ = tasks.preferred(self.model, batches.make(step, rows).to(self.device))
                    of_pairs[rows] = margin.float().cpu()
            found[split] = of_pairs
        self.refer(found)

    def refer(self, found: dict[str, Tensor]) -> None:
        """Hold the model to what a reference thinks of the pairs of each split."""
        for split, values in found.items():
            self._splits()[split].reference = values.numpy()

    def references(self) -> dict[str, Tensor]:
        """What the reference thinks of the pairs of each split; nothing unless the task is to prefer."""
        return {name: torch.from_numpy(b.reference) for name, b in self._splits().items() if len(b.reference)}

    def _splits(self) -> dict[str, Batches]:
        return {"train": self.batches} | ({} if self.held_out is None else {"valid": self.held_out})

    # -- signals -----------------------------------------------------------------------

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the run after the step in hand; a second Ctrl-C at once."""

        def ask(number: int, _frame: Any) -> None:
            if self.signal and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.signal = number
            self.watch.say("stopping after this step; again to stop at once, without saving")

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _asked_to_stop(self) -> bool:
        """Several processes must agree. They read what they said one step ago, which takes no wait for this one."""
        if self.world.size > 1:
            return len(self.asked) > 1 and bool(self.asked.pop(0) > 0)
        return bool(self.signal)


# What the weights to use are chosen by, before the loss, which grows while a classifier that is sure of itself is right
# more often, while more captions find their image, and while an image is painted closer to what it was.
CHOSEN_BY = {
    "translate": "bleu",
    "caption": "bleu",
    "classify": "accuracy",
    "tag": "accuracy",
    "match": "text_to_image_r10",
    "paint": "psnr",
}


def _is_better(found: dict[str, float], best: dict[str, Any], by: str = "") -> bool:
    """By a score where it was computed, then by the loss. A loss that is no number is never better."""

    def rank(scores: dict[str, Any]) -> tuple[float, float]:
        return scores.get(by, 0.0), -scores["loss"]

    return math.isfinite(found["loss"]) and (not best or rank(found) > rank(best))


def settled(recipe: Recipe, config: ModelConfig, device: torch.device) -> Recipe:
    """The recipe with what it leaves open about batches decided, so that a run goes on with the same ones anywhere.

    Streams are packed; so are pairs on a GPU, where one shape for all is worth more than the order of lengths, if the
    model can keep texts apart.
    """
    if recipe.train.packed is not None:
        return recipe
    task = recipe.data.task
    keeps_apart = not any(isinstance(tower, Recurrent) for tower in (config.encoder, config.decoder))
    packed = task in ("generate", "fill") or (task == "translate" and device.type == "cuda" and keeps_apart)
    return recipe.replace(train=recipe.train.replace(packed=packed))


def train(
    recipe: Recipe | None,
    data: str | Path | None,
    run: str | Path,
    *,
    resume: bool = False,
    begin_from: str | Path | Model | None = None,
    device: str | None = None,
    shard: bool = False,
    watch: Watch | None = None,
) -> Run:
    """Train a recipe on a data directory into a run directory, or resume one (then the recipe may be left out).

    ``begin_from`` is a model whose weights it begins with, or where one is: whatever :func:`regard.load` opens.
    """
    place, other = Run(run), None
    world = World.join(device, shard=shard)
    try:
        if resume:
            if recipe is not None:
                place.check_recipe(recipe)
            recipe, opened = place.recipe(), place.open_data(data)
            opened.treat_as(place.config().get("images"))
        else:
            assert recipe is not None
            assert data is not None
            if begin_from is not None:
                other = begin_from if isinstance(begin_from, Model) else tune.opened_to_tune(begin_from)
                recipe = completed(recipe, other.config)
            tune.check_beginning(recipe, begins=other is not None, shard=shard)
            opened = DataDir(Path(data))
            if other is not None:
                opened.treat_as(other.images)
        trainer = Trainer(recipe, opened, place, world, (watch or Watch()) if world.first else Watch(quiet=True))
        if not resume:
            began = None if other is None else trainer.begin_from(other)
            if world.first:
                writes = recipe.data.task in ("generate", "prefer")
                template = chat_template(other) if other is not None and writes else None
                place.create(trainer.recipe, trainer.config, opened, began, template)
            world.wait()
        else:
            trainer.resume()
        trainer.watch.began(trainer)
        if other is not None:  # what there was before; and the run can go on from here without the other
            other = begin_from = None
            trainer.validate()
            trainer.save(regular=False)
        trainer.fit()
    finally:
        world.leave()
    return place
