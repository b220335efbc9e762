"""The handler of each operation."""

from __future__ import annotations

from delayserver.config.settings import BrokerSettings, Settings
from delayserver.config.units import parse_delay_levels
from delayserver.front.front import HandlersByName
from delayserver.front.handlers.cancel import CancelHandlers
from delayserver.front.handlers.consuming import ConsumingHandlers
from delayserver.front.handlers.delivering import DeliveringHandlers
from delayserver.front.handlers.described import alike, described, for_client, for_peer
from delayserver.front.handlers.finding import FindingHandlers
from delayserver.front.handlers.greeting import GreetingHandlers
from delayserver.front.handlers.looking import LookingHandlers
from delayserver.front.handlers.lookup import LookupHandlers
from delayserver.front.handlers.metrics import MetricsHandlers
from delayserver.front.handlers.pending import PendingHandlers
from delayserver.front.handlers.publish import PublishHandlers
from delayserver.front.handlers.read import ReadHandlers
from delayserver.front.handlers.reading import GivenMessages
from delayserver.front.handlers.reschedule import RescheduleHandlers
from delayserver.front.handlers.schedules import schedule_acts
from delayserver.front.handlers.send import SendHandlers
from delayserver.front.handlers.tokens import token_acts
from delayserver.front.handlers.transactions import TransactionHandlers
from delayserver.operations.all_operations import DelayOperations, Operations
from delayserver.protocol import operation_names as names_of
from delayserver.protocol.limits import Limits
from delayserver.protocol.schema.dead_letters import DropDeadLetters, ListDeadLetters, ResendDeadLetters
from delayserver.protocol.schema.groups import ListGroups, RemoveGroup, SeekGroup, ShowGroup
from delayserver.protocol.schema.members import ShowMember, SwitchPrimary
from delayserver.protocol.schema.policies import ShowPolicy
from delayserver.protocol.schema.redispatch import RedispatchSlice
from delayserver.protocol.schema.reload import ReloadConfiguration
from delayserver.protocol.schema.shard_map import AskMap
from delayserver.protocol.schema.snapshots import DropSnapshot, KeepSnapshot, TakeSnapshot
from delayserver.protocol.schema.subjects import ListSubjects
from delayserver.protocol.schema.transactions import ListTransactions
from delayserver.protocol.schema.waiting_keys import ListWaitingKeys, RetryWaitingKeys, SkipWaitingKeys
from delayserver.runtime.clock import Clock


def handler_table(operations: Operations, settings: Settings, clock: Clock) -> HandlersByName:
    """The handlers of all operations. Those that `operations.delay` has are left out where it is None."""
    limits = limits_of(settings)
    levels_ms = parse_delay_levels(settings.message.delay_levels)
    table = _of_nodes(operations, limits, levels_ms, clock) | _of_groups(operations, settings.broker, levels_ms)
    if operations.delay is not None:
        table |= _of_delay(operations.delay, operations.identity.server_id, limits)
    return table


def _of_nodes(operations: Operations, limits: Limits, levels_ms: tuple[int, ...], clock: Clock) -> HandlersByName:
    """What a node says of itself, and what others send to it."""
    servers, tokens = operations.servers, operations.tokens
    greeting = GreetingHandlers(operations.identity, limits, levels_ms, servers, tokens, clock)
    looking = LookingHandlers(operations.status, operations.routing)
    delivering = DeliveringHandlers(operations.delivering, servers)
    return HandlersByName(
        {
            names_of.HELLO: greeting.hello,
            names_of.PROVE: greeting.prove,
            names_of.STATUS: looking.status,
            names_of.ROUTE: looking.route,
            names_of.PUBLISH: PublishHandlers(operations.publish, limits.batch_messages_max).publish,
            names_of.WINDOW_COMPLETE: delivering.window_complete,
        },
        {
            names_of.DELIVER: delivering.deliver,
            names_of.METRICS: MetricsHandlers(operations.metrics).metrics,
            names_of.SUBJECTS: described({ListSubjects: for_client(operations.subjects.page)}),
            names_of.TOKEN: described(token_acts(tokens, servers)),
            names_of.CLUSTER: described(
                {ShowMember: alike(operations.member.show), SwitchPrimary: for_peer(operations.member.switch)}
            ),
            names_of.MAP: described({AskMap: alike(operations.member.map)}),
            names_of.SNAPSHOT: described(
                {
                    TakeSnapshot: for_peer(operations.snapshots.take),
                    KeepSnapshot: for_peer(operations.snapshots.keep),
                    DropSnapshot: for_peer(operations.snapshots.drop),
                }
            ),
        },
    )


def _of_groups(operations: Operations, settings: BrokerSettings, levels_ms: tuple[int, ...]) -> HandlersByName:
    """What consumers do, and what is done with their groups and the messages in the broker."""
    consuming = ConsumingHandlers(
        operations.consuming, operations.broadcasting, settings, levels_ms, operations.leading
    )
    groups, letters, keys = operations.groups, operations.dead_letters, operations.waiting_keys
    return HandlersByName(
        {names_of.CANCEL_WAIT: consuming.cancel_wait},
        {
            names_of.PULL: consuming.pull,
            names_of.ACK: consuming.ack,
            names_of.NACK: consuming.nack,
            names_of.EXTEND: consuming.extend,
            names_of.READ: ReadHandlers(operations.reads, settings).read,
            names_of.FIND: FindingHandlers(operations.finding).find,
            names_of.GROUPS: described({ListGroups: for_client(groups.page)}),
            names_of.GROUP: described({ShowGroup: alike(groups.one)}),
            names_of.SEEK: described({SeekGroup: alike(groups.seek)}),
            names_of.REMOVE_GROUP: described({RemoveGroup: alike(groups.remove)}),
            names_of.POLICY: described({ShowPolicy: alike(operations.policies.policy)}),
            names_of.DEAD_LETTERS: described(
                {
                    ListDeadLetters: alike(letters.page),
                    ResendDeadLetters: alike(letters.resend),
                    DropDeadLetters: alike(letters.drop),
                }
            ),
            names_of.WAITING_KEYS: described(
                {
                    ListWaitingKeys: alike(keys.page),
                    SkipWaitingKeys: alike(keys.skip),
                    RetryWaitingKeys: alike(keys.retry),
                }
            ),
        },
    )


def _of_delay(delay: DelayOperations, server_id: str, limits: Limits) -> HandlersByName:
    """What a server that delays messages does, and a lone broker does not."""
    messages_max = limits.batch_messages_max
    reader = GivenMessages(server_id, messages_max)
    transactions = TransactionHandlers(delay.prepare, delay.transactions, reader, (server_id, messages_max))
    return HandlersByName(
        {
            names_of.SEND: SendHandlers(delay.send, messages_max, server_id, delay.repeats).send,
            names_of.PREPARE: transactions.prepare,
        },
        {
            names_of.CANCEL: CancelHandlers(delay.cancel, reader, server_id).cancel,
            names_of.RESCHEDULE: RescheduleHandlers(delay.reschedule, reader, server_id).reschedule,
            names_of.LOOKUP: LookupHandlers(delay.lookup, reader, server_id).lookup,
            names_of.REDISPATCH: described({RedispatchSlice: for_peer(delay.redispatch.slice)}),
            names_of.RELOAD: described({ReloadConfiguration: for_peer(delay.reload.by_peer)}),
            names_of.PENDING: PendingHandlers(delay.pending, delay.pending_messages).pending,
            names_of.COMMIT: transactions.commit,
            names_of.ROLLBACK: transactions.rollback,
            names_of.TRANSACTIONS: described({ListTransactions: for_client(delay.open_transactions.page)}),
            names_of.SCHEDULE: schedule_acts(delay.schedules),
        },
    )


def limits_of(settings: Settings) -> Limits:
    """The limits that `hello` sends to clients."""
    message, listen, broker = settings.message, settings.listen, settings.broker
    return Limits(
        frame_bytes_max=listen.frame_bytes_max,
        frame_items_max=listen.frame_items_max,
        batch_messages_max=message.batch_messages_max,
        body_bytes_max=message.body_bytes_max,
        subject_bytes_max=message.subject_bytes_max,
        message_id_bytes_max=message.message_id_bytes_max,
        properties_bytes_max=message.properties_bytes_max,
        delay_ms_max=message.delay_ms_max,
        subjects_max=message.subjects_max,
        groups_max=broker.groups_max,
        tags_max=message.tags_max,
        pull_messages_max=broker.pull_messages_max,
        wait_ms_max=broker.wait_ms_max,
    )
