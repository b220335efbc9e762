"""Builds what consumer groups ask for, and the tokens of clients: `operations/groups/` and `operations/access/`."""

from __future__ import annotations

from dataclasses import dataclass

from delayserver.follow.shard_table_writer import ShardTableWriter
from delayserver.operations.access.tokens import TokenBook
from delayserver.operations.access.waiting import WaitingCounts
from delayserver.operations.groups.consuming import Consuming
from delayserver.operations.groups.filtering import FilterCompiler
from delayserver.operations.groups.first_messages import FirstMessages
from delayserver.operations.groups.group_filters import GroupFilters
from delayserver.operations.groups.policies import GroupPolicies
from delayserver.operations.groups.redelivery import Redelivery
from delayserver.server.broker_parts import BrokerParts
from delayserver.server.cluster_parts import ClusterParts
from delayserver.server.ground import Ground
from delayserver.server.receive_parts import ReceiveParts
from delayserver.server.state_parts import StateParts
from delayserver.server.upkeep_parts import UpkeepParts
from delayserver.state.shard.shared_tables import TableNumber


@dataclass(frozen=True, slots=True)
class GroupParts:
    """Consumer groups."""

    redelivery: Redelivery
    policies: GroupPolicies
    first_messages: FirstMessages
    filters: FilterCompiler
    consuming: Consuming
    tokens: TokenBook


def build_groups(
    ground: Ground,
    state: StateParts,
    upkeep: UpkeepParts,
    receive: ReceiveParts,
    broker: BrokerParts,
    cluster: ClusterParts | None,
) -> GroupParts:
    """Redeliveries go through the commit of `receive`."""
    opened, runtime, local, names = ground.opened, ground.runtime, broker.local_broker, receive.names
    redelivery = Redelivery(
        local,
        receive.commit,
        upkeep.kept_room,
        receive.sequences,
        ground.names,
        state.balance.subjects.redeliveries,
        runtime,
    )
    filters = FilterCompiler(names, runtime)
    propose_policies = None
    if cluster is not None:
        propose_policies = ShardTableWriter(TableNumber.POLICIES, cluster.proposing, state.positions).write
    policies = GroupPolicies(broker.core, filters, names, runtime, propose_policies)
    first = FirstMessages(local, names, ground.settings.broker, runtime)
    waiting = WaitingCounts(state.balance, ground.names, runtime.clock)
    path, server_id = opened.directory.path, opened.directory.server_id
    membership = ground.outside.membership
    shared = None if membership is None else membership.map.tokens
    tokens = TokenBook(ground.outside.doors.fs, path, server_id, ground.outside.own_tokens, waiting, runtime, shared)
    table = broker.core.state.policies
    state.tables.add(TableNumber.POLICIES, table.keep, policies.adopt)
    state.tables.add(TableNumber.TOKENS, tokens.keep, tokens.adopt)
    return GroupParts(
        redelivery=redelivery,
        policies=policies,
        first_messages=first,
        filters=filters,
        consuming=Consuming(local, redelivery, GroupFilters(local, filters, policies), names, first, runtime),
        tokens=tokens,
    )
