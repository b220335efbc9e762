"""The state that the parts of a broker share. Each field has an owner, which alone changes it."""

from __future__ import annotations

from dataclasses import dataclass

from delayserver.broker.actions.given_up import GivenUpByLog
from delayserver.broker.actions.group_table import GroupTable
from delayserver.broker.actions.notes import ProgressNotes
from delayserver.broker.actions.policy_table import LettersToSync, PolicyTable
from delayserver.broker.actions.stored_messages import Damages, StoredMessages
from delayserver.broker.broker_limits import BrokerLimits
from delayserver.broker.disk_room import DiskRoom
from delayserver.broker.files.broker_files import BrokerFiles
from delayserver.broker.queues.queue_table import QueueTable
from delayserver.broker.queues.window_table import WindowTable


@dataclass(frozen=True, slots=True)
class BrokerState:
    """The state of one broker, as `recover_broker` made it.

    | field | who changes it |
    |---|---|
    | `files.store`, `windows` | `Arrivals` appends, `StoreRetention` removes |
    | `queues` | `Arrivals` appends, `StoreRetention` and `Removals` drop, a checkpoint puts queues to rest |
    | `policies` | the operation `policy`, by a `PolicyWrite` |
    | `groups` | itself; `Consuming`, `Retries`, `DeadLetters` and `DeadQueue` move the cursors of a group |
    | `notes`, `letters` | who acks or hands out adds; `Durability` takes |
    | `messages`, `damages` | who reads the store |
    | `given_up` | `SharedBroker` and the replay of the progress say it, `StoreRetention` does it |
    """

    files: BrokerFiles
    limits: BrokerLimits
    room: DiskRoom
    queues: QueueTable
    windows: WindowTable
    policies: PolicyTable
    damages: Damages
    messages: StoredMessages
    notes: ProgressNotes
    letters: LettersToSync
    groups: GroupTable
    given_up: GivenUpByLog
