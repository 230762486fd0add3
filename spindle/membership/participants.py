"""Who takes part in one epoch, as one member sees it: suspicions, the leader, the barrier before it acts, the majority.

Why apart from the machine: everything that keeps two groups from going on after a failure is in this file, and each of
its rules can be stated in a line:

    live      whom this member doesn't suspect. A suspicion is never taken back, and a suspect's row is not read any
              more; the suspicions of live rows are taken over (absorbed), so in the end all have the same.
    leader    the live member of lowest rank.
    barrier   a leader acts only when every live row suspects all ranks below the leader. Rows arrive in order, so what
              a member did at an earlier leader's word is visible by then, and nothing more of that kind will come.
    majority  2 * live > n - ended. `ended` are members that certainly never act again (the process has ended and its
              row can be read to its end, or it left in order) and whose row suspects no live member.
    departed  members that left in order: not live. Nobody tells others of it: each hears it from them.

Why the majority may leave out the ended: let two sets L and S of members go on without each other. Nobody in L suspects
anybody in L, and everybody in S suspects all of L (they acknowledged to go on without it), so L and S are disjoint, and
neither has a member that the other counts as ended (it would suspect its counterpart). With E and F the members that L
and S count as ended, |L| + |S| + |E or F| <= n; but 2|L| > n - |E| and 2|S| > n - |F| together say
2|L| + 2|S| + 2|E or F| >= 2|L| + 2|S| + |E| + |F| > 2n. So there is one such set at most.

Rules: a suspicion that costs this member its majority is not published: a member that has to stop must not accuse the
others. The bit sets are Python integers with one bit a rank.
"""

from __future__ import annotations

from spindle.membership.table import Table

WORD_BITS = 64  # of one suspicion column


def ranks_of(bits: int) -> list[int]:
    """The ranks in a bit set, ascending."""
    return [rank for rank in range(bits.bit_length()) if bits >> rank & 1]


class Participants:
    """See the module. One object per epoch; `table` is that of the epoch."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._columns = [f"suspected{word}" for word in range((table.n_rows + WORD_BITS - 1) // WORD_BITS)]
        self._me = 1 << table.my_rank
        self._suspects = 0
        self._departed = 0
        self._ended = 0
        self._published = 0
        self.live: list[int] = list(range(table.n_rows))  # ranks, ascending; always with the own one
        self._live = (1 << table.n_rows) - 1  # the same as a bit set

    @property
    def leader(self) -> int:
        """The lowest live rank."""
        return self.live[0]

    def is_live(self, rank: int) -> bool:
        return not (self._suspects | self._departed) >> rank & 1

    # --- what becomes known

    def suspect(self, rank: int) -> bool:
        """From now on this rank takes no part; False if that is not news."""
        if not self.is_live(rank) or 1 << rank == self._me:
            return False
        self._suspects |= 1 << rank
        self._refresh()
        return True

    def depart(self, rank: int) -> None:
        """This rank has left in order: all it owes is in its row."""
        if 1 << rank != self._me:
            self._ended |= 1 << rank
            self._departed |= 1 << rank & ~self._suspects
            self._refresh()

    def end(self, rank: int) -> None:
        """It is certain that this rank never acts again, and its row is what it left behind."""
        if not self.is_live(rank):
            self._ended |= 1 << rank
            self.publish()

    def heard_all(self) -> bool:
        """True if no live row accuses anybody but those who are suspected or gone here: then there is neither an
        accuser nor anything to absorb."""
        accused, me = 0, self._me
        for rank in self.live:
            if 1 << rank != me:
                accused |= self._accused_by(rank)
        return not accused & ~(self._suspects | self._departed)

    def absorb(self) -> list[int]:
        """Takes over what live rows suspect; returns the ranks that are news. Lower ranks first, and a row that has
        become suspect on the way is not read: of two members that accuse each other the lower one is believed."""
        news = 0
        for rank in self.live:
            if not (1 << rank) & (news | self._me):
                news |= self._accused_by(rank) & ~(self._suspects | self._departed | self._me)
        if news:
            self._suspects |= news
            self._refresh()
        return ranks_of(news)

    def accuser(self) -> int | None:
        """A live rank that suspects this member."""
        for rank in self.live:
            if 1 << rank != self._me and self._accused_by(rank) & self._me:
                return rank
        return None

    def _accused_by(self, rank: int) -> int:
        if len(self._columns) == 1:
            return self._table.get(rank, self._columns[0])
        bits = 0
        for word, column in enumerate(self._columns):
            bits |= self._table.get(rank, column) << (word * WORD_BITS)
        return bits

    def _refresh(self) -> None:
        self.live = [rank for rank in range(self._table.n_rows) if self.is_live(rank)]
        self._live = sum(1 << rank for rank in self.live)
        self.publish()

    def publish(self) -> None:
        """Tells the others what is suspected here, unless this member has lost its majority by it."""
        if self._suspects == self._published or not self.has_majority():
            return
        self._published = self._suspects
        mask = (1 << WORD_BITS) - 1
        for word, column in enumerate(self._columns):
            self._table.set(column, self._suspects >> (word * WORD_BITS) & mask)
        self._table.push()

    # --- what follows from it

    def has_majority(self, without: int = 0) -> bool:
        """True while this member and those that it doesn't suspect may go on. `without`: a bit set of further
        suspects."""
        live = self._live & ~without | self._me
        ended = 0
        if self._ended:
            ended = sum(1 for rank in ranks_of(self._ended) if not self._accused_by(rank) & live)
        return 2 * live.bit_count() > self._table.n_rows - ended

    def barrier_passed(self) -> bool:
        """True if every live row suspects all ranks below the leader (but those that left in order)."""
        below = (1 << self.leader) - 1 & ~self._departed
        if not below:
            return True
        return all(not below & ~self._accused_by(rank) for rank in self.live)

    def behind_barrier(self) -> list[int]:
        """Live ranks that the barrier waits for."""
        below = (1 << self.leader) - 1 & ~self._departed
        return [rank for rank in self.live if below & ~self._accused_by(rank)]

    def witnesses(self) -> list[int]:
        """Ranks whose rows tell what may have been acted on: the live ones, and of the ended those that this member's
        majority rests on (see the module): they may have echoed a trim that somebody installed."""
        return self.live + [
            rank for rank in ranks_of(self._ended & ~self._live) if not self._accused_by(rank) & self._live]
