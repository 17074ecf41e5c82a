"""What requests and checkpoints hold: slots and pages, shared where the tokens are the same.

1. A checkpoint is a slot and pages like a request's. Pages are shared by counting; only the last one, where a
   checkpoint ends inside it, is its own, and who goes on from it gets a copy.
2. A request that is admitted goes on from the deepest checkpoint of its tokens: its slot is copied, or where
   there is no room for both, handed over.
3. While its prompt is read checkpoints are taken where `shared_places.py` says: copies of its slot.
4. When it ends, its slot and pages become a checkpoint as they are.
5. Checkpoints leave when their time is over, with their conversation, or for a request that needs the room.
6. What became free is wiped before the next pass, whoever has it then.

Knows no torch, no order of requests, and no clock: the time is given to it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sparkle.engine.blocks import BlockChain, Prefix
from sparkle.engine.checkpoints import Checkpoint, Checkpoints
from sparkle.engine.pages import PagePool
from sparkle.engine.plan import Upkeep
from sparkle.engine.request import Request, RequestState
from sparkle.engine.shared_places import SharedPlaces
from sparkle.engine.slots import SlotPool


class Holdings:
    """Owns slots, pages and checkpoints."""

    def __init__(self, *, num_slots: int, num_pages: int, page_tokens: int, cache_s: float) -> None:
        """Checkpoints are held for `cache_s` after their last use; 0 keeps none."""
        self.slots = SlotPool(num_slots)
        self.pages = PagePool(num_pages, page_tokens)
        self.checkpoints = Checkpoints(cache_s)
        self._places = SharedPlaces(block_tokens=page_tokens, keep_s=cache_s)
        self._keeps = cache_s > 0
        self._now_s = 0.0
        self.evicted = 0
        """Checkpoints that left for a request, or for another one."""
        # of the plan in the making, or of the pass in flight
        self._page_copies: list[tuple[int, int]] = []
        self._restored: list[tuple[int, int]] = []
        self._copied_from: set[Checkpoint] = set()
        self._saving: list[tuple[Request, Checkpoint]] = []

    @property
    def needs_upkeep(self) -> bool:
        """Whether anything became free and is not wiped yet."""
        return bool(self.slots.unwiped or self.pages.unwiped)

    def name(self, request: Request) -> None:
        """Work out the names of a new request's blocks, once."""
        if self._keeps:
            request.chain = BlockChain(request.tenant, self.pages.page_tokens)
            request.chain.extend(request.tokens)

    def cached_tokens(self, request: Request) -> int:
        """What a request that waits would not have to read, were it admitted now."""
        source = self._source(request)
        return 0 if source is None else source.position

    def begin(self, now_s: float) -> None:
        """A new plan: what was kept for long enough goes."""
        self._now_s = now_s
        self._copied_from.clear()
        for checkpoint in self.checkpoints.expired(now_s):
            self._remove(checkpoint)
        self._places.forget_old(now_s)

    def has_room(self, request: Request) -> bool:
        """Whether its longest possible answer fits, with what checkpoints alone keep."""
        return self.pages.pages_for(request.worst_case_tokens) <= self.pages.num_obtainable

    def has_room_with_cached(self, request: Request) -> bool:
        """The same, counting what others hold of its tokens: a look at every block, for one alone."""
        source = self._source(request)
        shared = () if source is None else source.pages[: source.position // self.pages.page_tokens]
        needed = self.pages.pages_for(request.worst_case_tokens) - self.pages.num_held(shared)
        return needed <= self.pages.num_obtainable

    def admit(self, request: Request) -> bool:
        """Give a request that has room slot and pages, and the state of what is cached.

        False where it has to wait for the next pass: all that could leave is being copied from.
        """
        source = self._source(request)
        whole = 0 if source is None else source.position // self.pages.page_tokens
        shared = () if source is None else source.pages[:whole]
        needed = self.pages.pages_for(request.worst_case_tokens) - whole
        # from here on the shared ones stay, whatever leaves
        self.pages.hold(shared)
        if source is None:
            admitted = self._begin(request, needed, spared=())
        else:
            admitted = self._copy(request, source, shared, needed) or self._move(request, source, needed)
        if not admitted:
            self.pages.give_back(shared)
            return False
        request.placed = False
        request.computed = 0 if source is None else source.position
        if request.chain is not None:
            self._places.plan(request, request.chain, self._now_s)
        return True

    def take_checkpoint(self, request: Request, position: int) -> None:
        """The pass in the making ends a chunk here: copy the slot behind it, where a checkpoint is wanted."""
        if request.places is None or request.chain is None or not request.places.is_wanted(position):
            return
        prefix = request.chain.prefix(request.tokens, position)
        if self._is_taken(prefix) or not self._make_slot_for(position, request.tenant):
            return
        slot = self.slots.take()
        assert slot is not None, "room was made"
        pages = request.pages[: position // self.pages.page_tokens]
        self.pages.keep(pages)
        self._saving.append((request, _checkpoint(request, prefix, slot, pages)))

    def settle(self) -> None:
        """The pass has been run: what was saved in it can be used, unless its request was ended meanwhile."""
        for request, checkpoint in self._saving:
            is_sound = request.state is not RequestState.ENDED and request.leaves_state
            if is_sound and self.checkpoints.get(checkpoint.prefix) is None:
                self.checkpoints.add(checkpoint, self._now_s)
                request.checkpoints.append(checkpoint)
            else:
                self._free(checkpoint)
        self._saving = []

    def release(self, request: Request, *, is_sound: bool) -> None:
        """Take back what a request holds: as a checkpoint where its state is that behind `computed` tokens.

        It may wait again afterwards, and then goes on from there if that is still kept.
        """
        assert request.slot is not None, "it holds nothing"
        prefix = self._prefix_to_keep(request) if is_sound else None
        if prefix is None:
            self.slots.give_back(request.slot)
        else:
            pages = request.pages[: self.pages.pages_for(prefix.position)]
            self.pages.keep(pages)
            checkpoint = _checkpoint(request, prefix, request.slot, pages)
            self.checkpoints.add(checkpoint, self._now_s)
            request.checkpoints.append(checkpoint)
        self.pages.give_back(request.pages)
        request.slot, request.pages = None, ()
        self._places.end(request)

    def interrupt(self, request: Request) -> None:
        """Take back what a request holds that goes on later: from this checkpoint, or what is left of it."""
        if request.chain is not None:
            request.chain.extend(request.tokens)
        self.release(request, is_sound=True)

    def forget(self, checkpoints: Iterable[Checkpoint]) -> None:
        """Free those of these that are still held."""
        for checkpoint in checkpoints:
            if self.checkpoints.get(checkpoint.prefix) is checkpoint:
                self._remove(checkpoint)

    def upkeep(self) -> Upkeep:
        """What the runner is to do beside the pass that is planned."""
        made = Upkeep(
            wiped_slots=self.slots.take_unwiped(),
            wiped_pages=self.pages.take_unwiped(),
            page_copies=tuple(self._page_copies),
            restored=tuple(self._restored),
            saved=tuple(
                (request.slot, checkpoint.slot)
                for request, checkpoint in self._saving
                if request.slot is not None
            ),
        )
        self._page_copies, self._restored = [], []
        return made

    def check_integrity(self, running: Collection[Request]) -> None:
        """Every slot is free or held once, every page free or in use as often as is counted. For tests."""
        saving = [checkpoint for _, checkpoint in self._saving]
        cached = [*self.checkpoints.all, *saving]
        held = [request.slot for request in running if request.slot is not None]
        slots = [*self.slots.free, *held, *(one.slot for one in cached)]
        assert sorted(slots) == list(range(self.slots.num_slots)), "a slot is lost or held twice"
        held_pages, kept_pages = self.pages.uses
        assert sorted(held_pages.elements()) == sorted(page for one in running for page in one.pages)
        assert sorted(kept_pages.elements()) == sorted(page for one in cached for page in one.pages)
        used = held_pages.keys() | kept_pages.keys()
        assert sorted([*self.pages.free, *used]) == list(range(self.pages.num_pages)), (
            "a page is lost, or free and in use"
        )
        for checkpoint in cached:
            assert len(checkpoint.pages) == self.pages.pages_for(checkpoint.position)
            if checkpoint.position % self.pages.page_tokens:
                last = checkpoint.pages[-1]
                assert (held_pages[last], kept_pages[last]) == (0, 1), "a page that is not full is shared"

    def _source(self, request: Request) -> Checkpoint | None:
        # the last token is read in any case: what follows it is drawn behind it
        tokens, chain = request.tokens, request.chain
        return None if chain is None else self.checkpoints.deepest(chain, tokens, len(tokens) - 1)

    def _copy(self, request: Request, source: Checkpoint, shared: tuple[int, ...], needed: int) -> bool:
        """Whether there was room to leave the checkpoint as it is."""
        last = source.pages[len(shared) :]
        if not self._begin(request, needed, spared=(source,)):
            return False
        assert request.slot is not None
        self._restored.append((source.slot, request.slot))
        self._page_copies += zip(last, request.pages, strict=False)
        request.pages = (*shared, *request.pages)
        self._copied_from.add(source)
        self.checkpoints.use(source, self._now_s)
        request.checkpoints.append(source)
        return True

    def _move(self, request: Request, source: Checkpoint, needed: int) -> bool:
        """Whether the checkpoint's own slot, and its last page, could be taken in place of others."""
        last = source.pages[source.position // self.pages.page_tokens :]
        if source in self._copied_from or not self._make_room(
            request.tenant, needed - len(last), 0, spared=(source,)
        ):
            return False
        own = self.pages.take(needed - len(last))
        assert own is not None, "room was made"
        self.pages.hold(last)
        self.checkpoints.remove(source)
        self.pages.drop(source.pages)
        request.slot, request.pages = source.slot, (*source.pages, *own)
        return True

    def _begin(self, request: Request, needed: int, *, spared: Collection[Checkpoint]) -> bool:
        """Whether there was a slot, and so many pages, with what the others kept."""
        if not self._make_room(request.tenant, needed, 1, spared=spared):
            return False
        pages = self.pages.take(needed)
        assert pages is not None, "room was made"
        request.slot, request.pages = self.slots.take(), pages
        return True

    def _make_room(
        self, tenant: str | None, pages: int, slots: int, *, spared: Collection[Checkpoint]
    ) -> bool:
        """Whether so many are free for a tenant, now that enough checkpoints left."""
        while self.pages.num_free < pages or self.slots.num_free < slots:
            leaving = self.checkpoints.first_to_leave(tenant, {*self._copied_from, *spared})
            if leaving is None:
                return False
            self.evicted += 1
            self._remove(leaving)
        return True

    def _make_slot_for(self, position: int, tenant: str | None) -> bool:
        """Whether there is a slot for a checkpoint here: a free one, or that of a less useful checkpoint."""
        if self.slots.num_free:
            return True
        if not self.checkpoints.is_worth_more(position, tenant, spared=self._copied_from):
            return False
        return self._make_room(tenant, 0, 1, spared=())

    def _is_taken(self, prefix: Prefix) -> bool:
        saving = (checkpoint.prefix for _, checkpoint in self._saving)
        return self.checkpoints.get(prefix) is not None or prefix in saving

    def _prefix_to_keep(self, request: Request) -> Prefix | None:
        """Of a request that gives its slot up; None where a checkpoint is not worth it, or there is one."""
        position, chain = request.computed, request.chain
        if chain is None or not request.leaves_state or position < self.pages.page_tokens:
            return None
        tokens = request.tokens
        chain.extend(tokens)
        prefix = chain.prefix(tokens, position)
        existing = self.checkpoints.get(prefix)
        if existing is not None:
            existing.made_again(request.conversation)
            self.checkpoints.use(existing, self._now_s)
            return None
        return prefix

    def _remove(self, checkpoint: Checkpoint) -> None:
        self.checkpoints.remove(checkpoint)
        self._free(checkpoint)

    def _free(self, checkpoint: Checkpoint) -> None:
        self.slots.give_back(checkpoint.slot)
        self.pages.drop(checkpoint.pages)


def _checkpoint(request: Request, prefix: Prefix, slot: int, pages: tuple[int, ...]) -> Checkpoint:
    return Checkpoint(
        prefix=prefix,
        slot=slot,
        pages=pages,
        conversations=[request.conversation],
        tenant=request.tenant,
    )
