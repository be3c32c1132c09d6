"""The training loop of a script, inferred from what its hooks see: batches, backward passes, optimizer steps.

Forward has no hook of its own. A hook on the user's modules would be pickled, copied and guarded with them.
So forward is what lies between a batch and its backward pass. Where the script fetches no batches from a data
loader, forward begins behind the optimizer's step, with whatever the script does to make its batch.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING

from pulsetrain.collectors.rank.auto.cycle import OptimizerCycle
from pulsetrain.collectors.rank.auto.feeds import Feeds
from pulsetrain.collectors.rank.auto.graph import GraphCount
from pulsetrain.collectors.rank.auto.segments import Segments
from pulsetrain.collectors.rank.auto.tally import Tally
from pulsetrain.collectors.rank.description import EXPLICIT, INFERRED
from pulsetrain.collectors.rank.handle import Handle
from pulsetrain.collectors.rank.inference import InferredNumbers
from pulsetrain.collectors.rank.numbers import Number, ShiftedNumber
from pulsetrain.collectors.rank.phases import Span

if TYPE_CHECKING:
    from pulsetrain.collectors.rank.description import Description

IN_BACKWARD = "backward"
"""The key of all optimizers that step inside a backward pass. Together they are one."""
SEGMENTS = frozenset(("data", "forward", "backward", "optimizer", "checkpoint", "evaluation"))
TOKEN_SOURCES = ("batch", "embedding")
OBSERVED = 2
"""The step whose graphs are counted. Caches and shapes have settled by then."""
MOST_GRAPHS = 256
"""Graphs of that step that are counted. Further backward passes are taken to cost as much on average."""
GRAPHS_NS = 200_000_000
"""After so much time no further graph of that step is counted: no step may take seconds longer for it."""
ALIKE = 1.01
"""Largest ratio of FLOPs of graphs that stand for others which were not counted."""
MOST_BACKWARDS = 10_000
"""Backward passes of one step of which losses are kept."""
PATIENCE = 3
"""A script that has called `init` is expected to end its steps itself. After so many cycles it is not."""


class TrainingLoop:
    """Turns events into phases, steps and numbers. All events are the main thread's; others are ignored.

    Only `step_in_backward` may come from another thread: the engine's, while the main one waits for it.

    - `done`: what belongs to the step that is about to end. `since`: what came after its last optimizer.
    - `waiting`: what was fetched since the last backward pass. `aside`: what was before an evaluation began.
    - `trained`: how many numbers of each parameter the optimizers train, by the parameter's id. `say_sizes`:
      whether these are the true ones in any case.
    - `copied`: the same of the model's parameters where the optimizers train copies or shards of them.
    - `ended_optimizers`: how many steps of optimizers have ended.
    - `is_fetching`: whether a data loader is asked for a batch now.
    - `rehearses`: whether what runs now has no meaning for the training.
    """

    def __init__(self, handle: Handle, segments: Segments, description: Description) -> None:
        self._handle, self.segments, self._description = handle, segments, description
        self._cycle, self._feeds = OptimizerCycle(), Feeds()
        self.done, self.since = Tally(), Tally()
        self.waiting, self.aside = Tally(), Tally()
        self.trained: dict[int, int] = {}
        self.copied: dict[int, int] = {}
        self.say_sizes = self._hides_copied = False
        self.ended_optimizers = 0
        self.is_fetching = self.rehearses = self._fetches_to_evaluate = False
        self._graphs: list[GraphCount] = []  # one for each backward pass of the step that is observed
        self._graphs_ns = 0  # that it took to count them
        self._tokens_per_backward = self._flops_per_token = self._flops_per_backward = 0.0
        self._ended_steps = self._closed_steps = 0
        self._given: set[str] = set()
        self._stepping: list[object] = []  # optimizers that step now, the outermost first
        self._role: object = None  # of the outermost of them
        self._trains_in_step = False  # it runs forward and backward itself
        self._has_evaluated = False  # and has a loss from there
        self._step_raised = False  # it was left by an error, or so it seems
        self._in_backward = 0
        self._stepped_in_backward = False
        self._closing = False
        self._source = ""  # of the tokens
        self._ended_at = 0  # when the last optimizer of a step that is not closed ended; 0: there is none
        self._waited = 0
        self._expected_backwards = 1
        self._has_loader = False
        self._first_count: Number | None = None

    # What the hooks tell.

    @property
    def listens(self) -> bool:
        """Whether the caller's events count. In a rehearsal, or the capture of a CUDA graph, they do not.

        In a capture nothing runs, and a query of an event would spoil it. Never raises.
        """
        handle = self._handle
        if handle.state is None or self.rehearses or not handle.on_main_thread:
            return False
        try:
            return handle.timer is None or not handle.timer.capturing()
        except Exception:  # noqa: BLE001 - a device that failed raises whatever it is asked: the script will see
            handle.fault()
            return False

    @property
    def in_backward(self) -> bool:
        """Whether a backward pass runs."""
        return self._in_backward > 0

    @property
    def wants_count(self) -> bool:
        """Whether nobody has said yet how many updates were made, and steps are not numbered yet."""
        return self._first_count is None and not self._closed_steps and "steps" not in self._given

    @property
    def wants_graph(self) -> bool:
        """Whether the graph behind the next backward pass is to be counted. It is, in one early step."""
        is_observed = self._ended_steps == OBSERVED and len(self._graphs) < MOST_GRAPHS
        in_time = self._graphs_ns < GRAPHS_NS
        return is_observed and in_time and not self._in_backward and "flops" not in self._given

    def take_graph(self, graph: GraphCount, took_ns: int) -> None:
        """Take what the graph behind a backward pass says, which took so long to count."""
        self._graphs.append(graph)
        self._graphs_ns += took_ns

    def begin_fetch(self, iterator: object) -> None:
        """The script asks an iterator of a data loader for a batch."""
        self._fetches_to_evaluate = self._is_to_evaluate(iterator)
        if self._fetches_to_evaluate:
            return
        self.aside = Tally()  # nothing is trained on it any more
        if self._feeds.fetched(iterator):
            self.waiting = Tally()
        self._doubt_optimizer()
        self._handle.start_clock()
        self.segments.switch("data")

    def end_fetch(self, tokens: int) -> None:
        """The batch is there. `tokens` is 0 where it does not say."""
        if self._fetches_to_evaluate:
            return
        self.waiting.fetched += 1
        self.waiting.tokens += tokens
        self.segments.expect("forward")

    def _is_to_evaluate(self, iterator: object) -> bool:
        """Whether a batch is not one to train on. A phase of the script says so whatever feeds it."""
        segments = self.segments
        return segments.marks_evaluation or (segments.evaluates and self._feeds.is_evaluation(iterator))

    def fail_fetch(self, iterator: object) -> None:
        """There is no further batch."""
        self._feeds.ended(iterator)
        if self.segments.current == "data":
            self.segments.switch("")

    @property
    def overfull(self) -> bool:
        """Whether a step has so many backward passes that it may never end.

        No optimizer may be seen here, or the script ends its steps itself and has stopped. A number on its
        way from a device holds memory, so no more losses are kept.
        """
        return self.done.backwards + self.since.backwards >= MOST_BACKWARDS

    def begin_backward(self, loss: Number | None) -> None:
        """A backward pass begins. What was expected before it was the forward pass."""
        self._in_backward += 1
        if self._in_backward > 1:
            return
        self._doubt_optimizer()
        self._handle.start_clock()
        self._handle.hold_at_backward()
        self._feeds.trained()
        self._take_batches()
        self.since.backwards += 1
        if self.overfull:
            self.done.losses, self.since.losses = [], []
        elif loss is not None and "loss" not in self._given and self._is_first_evaluation():
            self.since.losses.append(loss)
        self.segments.confirm("forward")
        self.segments.switch("backward")

    def go_on_backward(self) -> None:
        """A backward pass that was left half done goes on. `end_backward` ends it, too."""
        self._in_backward += 1
        if self._in_backward > 1:
            return
        self._doubt_optimizer()
        self._handle.hold_at_backward()
        self.segments.switch("backward")

    def end_backward(self) -> None:
        """It has ended, with or without an error."""
        self._in_backward = max(0, self._in_backward - 1)
        if self._in_backward:
            return
        backwards = self.done.backwards + self.since.backwards
        more = backwards < self._expected_backwards
        self.segments.expect("forward" if more else "optimizer")
        if self._stepped_in_backward:
            self._stepped_in_backward = False
            self._begin_cycle(IN_BACKWARD)
            self._end_cycle(IN_BACKWARD)

    def step_in_backward(self) -> None:
        """An optimizer steps inside the backward pass, on whatever thread runs it."""
        self._stepped_in_backward = True

    def divide_losses(self, divisor: int) -> None:
        """The gradients of the step's backward passes so far were divided. So is the objective."""
        self.since.divide_losses(divisor)

    def begin_optimizer(self, key: object, *, closure: bool, role: object = None) -> None:
        """An optimizer begins to step. One that steps inside another one is a part of it.

        `closure`: forward and backward run inside the step. `role`: what stays the same where the script
        makes a new optimizer for each update. By default that is the `key`.
        """
        if self._in_backward:
            self.step_in_backward()
            return
        if key in self._stepping:  # its last step raised, so its end was never told
            del self._stepping[self._stepping.index(key) :]
        if self._step_raised:
            self._stepping.clear()
        self._stepping.append(key)
        if len(self._stepping) > 1:
            return
        self._trains_in_step, self._has_evaluated, self._step_raised = closure, False, False
        self._role = key if role is None else role
        self._begin_cycle(self._role)
        is_fed = self.waiting.fetched + self.aside.fetched > 0
        if self.segments.current == "forward" and is_fed and not closure:
            self.segments.confirm("forward")  # its gradients come from elsewhere than a backward pass
        if self.segments.current != "optimizer":
            self.segments.expect("optimizer")
        if not closure:
            self.segments.confirm("optimizer")

    def end_optimizer(self, key: object, count: Number | None = None) -> None:
        """It has stepped. `count`: how many updates it says it has made."""
        self.ended_optimizers += 1
        if self._in_backward or key not in self._stepping:
            return
        del self._stepping[self._stepping.index(key) :]
        if self._first_count is None:  # of an inner one too: a container of optimizers has none
            self._first_count = count
        if self._stepping:
            return
        self._step_raised = False
        self.segments.confirm("optimizer")
        self._end_cycle(self._role)

    @property
    def _has_batch(self) -> bool:
        """Whether a batch is there to train on."""
        return self.since.fetched + self.waiting.fetched + self.aside.fetched > 0

    def _take_batches(self) -> None:
        """What was fetched is trained on, also before an evaluation that has just ended."""
        self.since.take_in(self.aside)
        self.since.take_in(self.waiting)

    def _is_first_evaluation(self) -> bool:
        """Return whether the loss of this backward pass is the step's.

        An optimizer that trains in its step may evaluate its closure many times, as LBFGS does.
        """
        if not (self._stepping and self._trains_in_step):
            return True
        is_first, self._has_evaluated = not self._has_evaluated, True
        return is_first

    def _doubt_optimizer(self) -> None:
        """The script fetches or goes backward: a step that has not ended has raised, as where memory ran out.

        torch calls no hook then. The next optimizer that begins is not inside that step.
        """
        self._step_raised = bool(self._stepping) and not self._trains_in_step

    def begin_evaluation(self) -> None:
        """The trained model is put into evaluation mode."""
        steps = bool(self._stepping) and not self._step_raised
        if self._in_backward or steps:
            return
        self._feeds.begin_evaluation()
        if not self.segments.evaluates:
            self.aside, self.waiting = self.waiting, Tally()
            self.segments.switch("evaluation")

    def end_evaluation(self) -> None:
        """It is put back into training mode."""
        if self.segments.evaluates:
            self._expect_forward(self._has_batch or not self._has_loader)

    def count_tokens(self, where: str) -> None:
        """Note where the tokens come from."""
        self._source = where
        if "tokens" not in self._given:
            self._description.set("tokens", where)

    def finish(self) -> None:
        """Close the step whose end was still uncertain. Call it when the script has ended.

        An outer optimizer that steps behind the last inner step, as for local SGD, makes none of its own.
        """
        has_trained = self.done.backwards or self.done.fetched
        if self._ended_at and (has_trained or not self._cycle.is_known):
            self._close(self._ended_at)

    def begin_again(self) -> None:
        """The attempt is over, in the middle of whatever it did. The script begins anew in this process."""
        self.segments.begin_again()
        self._cycle, self._feeds = OptimizerCycle(), Feeds()
        self.done, self.since = Tally(), Tally()
        self.waiting, self.aside = Tally(), Tally()
        self._graphs, self._stepping = [], []
        self._in_backward = self._ended_at = self._waited = self._closed_steps = self._graphs_ns = 0
        self._stepped_in_backward = self._closing = self.is_fetching = self.rehearses = False
        self._trains_in_step = self._has_evaluated = self._step_raised = False
        self._first_count = None

    # What the script says itself: `handle.Inference`.

    def stand_for(self, name: str, span: Span) -> Span:
        """See `Inference`."""
        if name not in SEGMENTS:
            return span
        self.segments.turn_off(name)
        return self.segments.marked(name, span)

    def script_gives(self, kind: str) -> None:
        """See `Inference`."""
        self._given.add(kind)
        if kind == "steps":
            self._ended_at = 0

    def take_numbers(self) -> InferredNumbers:
        """See `Inference`."""
        if not self._closing:
            self._take_batches()
            self.done.take_in(self.since)
        tally, self.done = self.done, Tally()
        self._expected_backwards = max(1, tally.backwards)
        self._ended_steps += 1
        if self._graphs:
            self._learn(tally)
        loss = tally.loss()
        self._describe(tally)
        return InferredNumbers(
            tokens=self._tokens(tally),
            flops=self._flops(tally),
            numbers={"loss": loss} if loss is not None else {},
        )

    # Steps.

    def _begin_cycle(self, key: object) -> None:
        if self._cycle.begin(key) and self._ended_at:
            self._close(self._ended_at)

    def _end_cycle(self, key: object) -> None:
        self.segments.switch("")
        self._take_batches()
        self.done.take_in(self.since)
        self._has_loader = self.done.fetched > 0
        self._ended_at = perf_counter_ns()
        closed = self._cycle.end(key)
        if closed:
            self._close(self._ended_at)
        self._expect_forward(not self._has_loader or not closed)

    def _expect_forward(self, is_expected: bool) -> None:
        if is_expected:
            self.segments.expect("forward")
        else:
            self.segments.switch("")

    def _close(self, end_ns: int) -> None:
        """End the step, unless the script does so itself or may still begin to."""
        self._ended_at = 0
        handle = self._handle
        if "steps" in self._given or handle.state is None:
            return
        if handle.script_calls and self._waited < PATIENCE:
            self._waited += 1
            self.done = Tally()
            return
        if not self._closed_steps:
            self._number_first_step()
        self._closed_steps += 1
        self._closing = True
        try:
            handle.end_step(end_ns)
        finally:
            self._closing = False
        self._description.set("steps", INFERRED)

    def _number_first_step(self) -> None:
        """The optimizer's count says which update this was, where a restore has not said it already."""
        count, handle = self._first_count, self._handle
        if count is None or handle.resumed or handle.behind_file:
            return
        first = ShiftedNumber(count, self._waited - 1)
        if not first.ready():
            handle.count_from_late(first)
        elif first.value() > 0:
            handle.count_from(int(first.value()))

    # Numbers.

    def _learn(self, tally: Tally) -> None:
        """Take from the observed step what one token, or one backward pass, costs."""
        graphs, self._graphs = self._graphs, []
        self._learn_copied(graphs)
        if not tally.tokens:
            self._tokens_per_backward = sum(graph.tokens for graph in graphs) / len(graphs)
            if self._tokens_per_backward:
                self.count_tokens("embedding")
        if self._stand_for_all(graphs, tally.backwards) and all(graph.flops for graph in graphs):
            self._flops_per_backward = sum(graph.flops for graph in graphs) / len(graphs)
            total = self._flops_per_backward * tally.backwards
            self._flops_per_token = total / tally.tokens if tally.tokens else 0.0

    def _stand_for_all(self, graphs: list[GraphCount], backwards: int) -> bool:
        """Whether these graphs, counted in a step, say what all its backward passes cost."""
        if len(graphs) == min(backwards, MOST_GRAPHS):
            return True
        flops = [graph.flops for graph in graphs]
        return self._graphs_ns >= GRAPHS_NS and max(flops) <= ALIKE * min(flops)

    def _learn_copied(self, graphs: list[GraphCount]) -> None:
        leaves = {key: numbers for graph in graphs for key, numbers in graph.leaves.items()}
        is_model = bool(self.trained) and not self.say_sizes and any(leaves.values())
        if is_model and leaves.keys().isdisjoint(self.trained):
            self.copied = leaves
            self._hides_copied = any(graph.hides_leaves for graph in graphs)

    def _tokens(self, tally: Tally) -> int:
        return tally.tokens or round(self._tokens_per_backward * tally.backwards)

    def _flops(self, tally: Tally) -> float | None:
        if self._flops_per_token and tally.tokens:
            return self._flops_per_token * tally.tokens
        if self._flops_per_backward:  # also of an update from a batch that was fetched before
            return self._flops_per_backward * tally.backwards
        tokens = self._tokens(tally) if self._source in TOKEN_SOURCES else 0
        numbers = 0 if self._hides_copied else sum((self.copied or self.trained).values())
        return 6.0 * numbers * tokens if numbers and tokens else None

    def _describe(self, tally: Tally) -> None:
        """Say what is inferred. After the first steps nothing changes, so nothing is written."""
        describe = self._description
        if self.segments.recorded and describe.get("phases") != EXPLICIT:
            describe.set("phases", INFERRED)
        if tally.losses and "loss" not in self._given:
            describe.set("loss", INFERRED)
        if "flops" not in self._given and self._flops(tally):
            describe.set("flops", "autograd graph" if self._flops_per_backward else "parameters")
