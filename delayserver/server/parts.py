"""Builds the parts of a server, one builder a room, in the order in which each finds what it needs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from delayserver.follow.damage_telling import DamageTelling
from delayserver.front.pinging import answers
from delayserver.lead.front_probe import FrontProbe
from delayserver.runtime.log_appender import LogAppender
from delayserver.server.broker_parts import BrokerParts, build_broker
from delayserver.server.clean_end import BrokerEnd, CleanEnd, LastCheckpoint, Settling
from delayserver.server.cluster_parts import ClusterParts, build_cluster
from delayserver.server.dispatch_parts import DispatchParts, build_dispatch
from delayserver.server.figure_parts import FigureParts, build_figures
from delayserver.server.ground import Ground
from delayserver.server.group_parts import GroupParts, build_groups
from delayserver.server.key_parts import KeyParts, build_keys
from delayserver.server.leadership_end import LeadershipEnd
from delayserver.server.load_parts import LoadParts, build_load
from delayserver.server.message_parts import MessageParts, build_messages
from delayserver.server.outcome_parts import OutcomeParts, build_outcomes
from delayserver.server.receive_parts import ReceiveParts, build_receive
from delayserver.server.replay_parts import ReplayParts, build_replay
from delayserver.server.start_recovery import Recovery, StartCounts, StartOutcomes
from delayserver.server.state_parts import StateParts, build_state
from delayserver.server.upkeep_parts import UpkeepParts, build_upkeep
from delayserver.startup.directory_opening import Opened, count_accepted
from delayserver.startup.lost_outcomes import LostOutcomes
from delayserver.startup.pending_subjects import pending_before
from delayserver.startup.replay_ahead import HeldCancels
from delayserver.startup.schedules_before import schedules_before
from delayserver.state.counts.balance import ANY_TIME_MS
from delayserver.state.files import Files
from store.logs.window_files import SEQUENCE_MAX
from store.records.batches import I64
from store.records.transaction_timer import TIMERS_SUBJECT
from store.tables.names import OWN


@dataclass(frozen=True, slots=True)
class Parts:
    """All parts of a server on an open data directory, by room. None of them runs yet: see `tasks.py`."""

    ground: Ground
    state: StateParts
    keys: KeyParts
    replay: ReplayParts
    load: LoadParts
    outcomes: OutcomeParts
    upkeep: UpkeepParts
    receive: ReceiveParts
    broker: BrokerParts
    dispatch: DispatchParts
    messages: MessageParts
    groups: GroupParts
    figures: FigureParts
    recovery: Recovery
    end: CleanEnd
    cluster: ClusterParts | None
    hand_over: LeadershipEnd | None
    front_probe: FrontProbe | None
    damage_telling: DamageTelling | None

    @property
    def opened(self) -> Opened:
        """The open data directory."""
        return self.ground.opened

    @property
    def files(self) -> Files:
        """Its files."""
        return self.ground.opened.files


def build_parts(ground: Ground) -> Parts:
    """May run in any thread. Raises StoreError and its kinds."""
    state = build_state(ground)
    keys = build_keys(ground, state)
    replay = build_replay(ground, state, keys)
    replay.day_end.remove_left()
    in_both_tiers = replay.day_outcomes.open(patient=ground.patient)
    load = build_load(ground, state)
    storage, runtime = ground.settings.storage, ground.runtime
    appender = LogAppender(
        ground.files.log,
        storage.inline_sync_bytes_max,
        runtime.clock,
        runtime.workers,
        assumed=storage.durability == "os",
    )
    cluster = build_cluster(ground, state, appender)
    outcomes = build_outcomes(ground, state, cluster)
    upkeep = build_upkeep(ground, state, cluster)
    upkeep.removal.finish_interrupted()
    upkeep.checkpointing.call_before(keys.index.make_durable)
    _begin_counts(ground, state, upkeep.entries.retired_totals() - in_both_tiers)
    receive = build_receive(ground, state, upkeep, appender, cluster)
    broker = build_broker(ground, state, upkeep, receive, cluster)
    if broker.shared is not None:
        replay.of_broker.give_to(broker.shared.follow)
        upkeep.checkpointing.call_before(broker.shared.mark)
    dispatch = build_dispatch(ground, state, broker, cluster)
    messages = build_messages(ground, state, upkeep, receive)
    groups = build_groups(ground, state, upkeep, receive, broker, cluster)
    figures = build_figures(ground, state, load, upkeep, receive, broker, dispatch, groups, cluster)
    recovery = _recovery(ground, state, replay, outcomes, keys)
    end = CleanEnd(
        Settling(
            receive.commit,
            state.positions,
            ground.outside.replay_room,
            dispatch.groups,
            outcomes.recorder,
            broker.broker_commit,
        ),
        LastCheckpoint(upkeep.checkpointing, ground.opened, state.book),
        BrokerEnd(upkeep.segments_ahead, broker.publishing, broker.local_broker, ground.opened),
    )
    hand_over = _hand_over(cluster, receive, end)
    return Parts(
        ground,
        state,
        keys,
        replay,
        load,
        outcomes,
        upkeep,
        receive,
        broker,
        dispatch,
        messages,
        groups,
        figures,
        recovery,
        end,
        cluster,
        hand_over,
        _front_probe(ground, cluster, hand_over),
        _damage_telling(ground),
    )


def _hand_over(cluster: ClusterParts | None, receive: ReceiveParts, end: CleanEnd) -> LeadershipEnd | None:
    if cluster is None:
        return None
    return LeadershipEnd(cluster.standing, cluster.leading, cluster.proposals, cluster.beating, receive.commit, end)


def _damage_telling(ground: Ground) -> DamageTelling | None:
    membership, runtime = ground.outside.membership, ground.runtime
    return None if membership is None else DamageTelling(membership.map.fronts, runtime.damage, runtime.clock)


def _front_probe(ground: Ground, cluster: ClusterParts | None, hand_over: LeadershipEnd | None) -> FrontProbe | None:
    membership = ground.outside.membership
    if cluster is None or hand_over is None or membership is None or not membership.settings.front_probe:
        return None
    asks = partial(answers, ground.outside.doors.connect)
    return FrontProbe(membership.map.fronts, cluster.standing, asks, hand_over.to, ground.runtime.clock)


def _recovery(
    ground: Ground, state: StateParts, replay: ReplayParts, outcomes: OutcomeParts, keys: KeyParts
) -> Recovery:
    files, found, runtime = ground.files, ground.opened.found, ground.runtime
    decided, balance, windows = state.decided, state.balance, state.windows
    record, window_ms = replay.round_outcomes.record_missing_cancels, windows.book.window_ms
    lost = LostOutcomes(files, decided, record, found.checkpoint.replay_offset, window_ms, runtime.workers)
    return Recovery(
        state.positions,
        ground.outside.replay_room,
        HeldCancels(files.log, found.checkpoint, decided.holds, balance, runtime.workers),
        StartOutcomes(lost, replay.round_outcomes, replay.day_outcomes, outcomes.recorder),
        StartCounts(ground.opened, replay.reader, balance, decided, windows, keys.index, runtime),
        state.residency.loadable,
    )


def _begin_counts(ground: Ground, state: StateParts, totals: I64) -> None:
    """Gives the state the counts of before this start. `totals`: outcomes that no file of dispatch_log has, i64[16]."""
    opened, files, balance = ground.opened, ground.files, state.balance
    for key in files.dispatch.keys():
        totals += files.dispatch.counts(key)
    state.decided.count_durable(totals)
    pending = pending_before(files, opened.found, created=opened.directory.created)
    # A member follows redeliveries of others until it leads.
    before = opened.sequences.next - 1 if ground.outside.membership is None else SEQUENCE_MAX
    balance.subjects.redeliveries.begin(before, frozenset() if pending is None else pending.ended)
    if pending is not None:
        balance.subjects.start_from(pending.subjects, pending.redeliveries)
    for name, place in schedules_before(files, opened.found).items():
        state.schedules.place(name, place)
    counted = opened.found.checkpoint.totals
    # A checkpoint of an older program, or a lost one, does not say it. Then timers may lie anywhere.
    has_timers = files.names.code(OWN, TIMERS_SUBJECT) != 0
    balance.extend_timers(counted.get("timers_until_ms", ANY_TIME_MS if has_timers else 0))
    if opened.found.lost:
        balance.place(*count_accepted(files))
    else:
        balance.place(*[counted.get(name, 0) for name in ("accepted", "internal", "replaced")])
