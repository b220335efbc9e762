package delayserver

// Cancel and lookup in columns: the fast way for many messages of one server.

import (
	"context"
	"errors"
	"fmt"
)

// outcomes are the names of the codes in columns.
var outcomes = []string{
	Unknown, Pending, InFlight, Retrying, Delivered, Cancelled, Expired, Deduplicated, DeadLettered, Retired, AlreadyCancelled, TooLate,
	RolledBack, Prepared, Committed,
}

// Numbers name messages of one server by sequence and due time. All slices have one length.
type Numbers struct {
	ServerID string
	Sequence []int64
	DueMs    []int64
}

// NumbersOf are those of receipts, which must be of one server.
func NumbersOf(receipts ...Receipt) (*Numbers, error) {
	numbers := &Numbers{}
	for _, receipt := range receipts {
		serverID, dueMs, sequence, err := receipt.Parts()
		if err != nil {
			return nil, err
		}
		if numbers.ServerID != "" && numbers.ServerID != serverID {
			return nil, fmt.Errorf("receipts of two servers, %s and %s: ask each server for its own", numbers.ServerID, serverID)
		}
		numbers.ServerID = serverID
		numbers.Sequence, numbers.DueMs = append(numbers.Sequence, sequence), append(numbers.DueMs, dueMs)
	}
	return numbers, nil
}

var errNumbers = errors.New("Numbers has as many due times as sequences, and at least one")

func (n *Numbers) wire() (map[string]any, error) {
	if len(n.Sequence) == 0 || len(n.Sequence) != len(n.DueMs) {
		return nil, errNumbers
	}
	arguments := map[string]any{
		"count": len(n.Sequence), "sequence": encodeColumn(n.Sequence, i64), "due_ms": encodeColumn(n.DueMs, i64),
	}
	given(arguments, "server_id", n.ServerID)
	return arguments, nil
}

// NumberedStates has a row for each message. After CancelColumns only Outcome is set.
type NumberedStates struct {
	Outcome      []string
	DispatchedUs []int64
	Attempts     []int64

	OriginalSequence    []int64 // of a copy: the message that counts, with the same due time
	RescheduledSequence []int64 // of a moved message
	RescheduledDueMs    []int64

	Rejected []Rejected // rows that damage hides
}

type numberedReply struct {
	Outcome             column         `msgpack:"outcome"`
	DispatchedUs        column         `msgpack:"dispatched_us"`
	Attempts            column         `msgpack:"attempts"`
	OriginalSequence    column         `msgpack:"original_sequence"`
	RescheduledSequence column         `msgpack:"rescheduled_sequence"`
	RescheduledDueMs    column         `msgpack:"rescheduled_due_ms"`
	Rejected            []*rejectedRow `msgpack:"rejected"`
}

func (r *numberedReply) states(rows int, all bool) (*NumberedStates, error) {
	states := &NumberedStates{Outcome: make([]string, rows)}
	codes, err := r.Outcome.rows(rows, u8)
	if err != nil {
		return nil, err
	}
	for row, code := range codes {
		states.Outcome[row] = fmt.Sprintf("outcome %d", code) // of a newer server
		if code < int64(len(outcomes)) {
			states.Outcome[row] = outcomes[code]
		}
	}
	if !all {
		return states, nil
	}
	for _, each := range []struct {
		from *column
		into *[]int64
	}{
		{&r.DispatchedUs, &states.DispatchedUs}, {&r.Attempts, &states.Attempts}, {&r.OriginalSequence, &states.OriginalSequence},
		{&r.RescheduledSequence, &states.RescheduledSequence}, {&r.RescheduledDueMs, &states.RescheduledDueMs},
	} {
		if *each.into, err = each.from.rows(rows, i64); err != nil {
			return nil, err
		}
	}
	for _, row := range r.Rejected {
		if row == nil || row.Index < 0 || row.Index >= int64(rows) {
			return nil, errors.New("the reply to lookup rejects a row that was not asked for")
		}
		states.Rejected = append(states.Rejected, Rejected{int(row.Index), row.named()})
	}
	return states, nil
}

func (c *Client) numbered(ctx context.Context, kind effect, operation string, numbers *Numbers) (*NumberedStates, error) {
	arguments, err := numbers.wire()
	if err != nil {
		return nil, err
	}
	var result numberedReply
	if err := c.call(ctx, kind, operation, arguments, &result); err != nil {
		return nil, err
	}
	return result.states(len(numbers.Sequence), operation == "lookup")
}

// CancelColumns cancels messages, of at most Limits.BatchMessagesMax rows. See Cancel.
func (c *Client) CancelColumns(ctx context.Context, numbers *Numbers) (*NumberedStates, error) {
	return c.numbered(ctx, sameAsOnce, "cancel", numbers)
}

// LookupColumns tells what became of messages, of at most Limits.BatchMessagesMax rows. See Lookup.
func (c *Client) LookupColumns(ctx context.Context, numbers *Numbers) (*NumberedStates, error) {
	return c.numbered(ctx, changesNothing, "lookup", numbers)
}
